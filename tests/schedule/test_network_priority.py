"""Priority in the network: classes of the fluid (Geryon), queues of a switch (TensorExpress), packets (Mercury)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.cost.lanes import Lane
from laconic.cost.server_star import ServerStar, Slice, class_of, gated_period, sliced, star_period
from laconic.cost.server_star_flows import carry
from laconic.errors import LaconicError
from laconic.network.fluid import Fluid, Job
from laconic.network.packets import Packet, forward, packets
from laconic.schedule.geryon import SLICE_BYTES, geryon
from laconic.schedule.mercury import mercury
from laconic.schedule.tensorexpress import switched, tensorexpress
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price, one_way
from tests.schedule.cnns import CNNS, profile

Flow = tuple[float, dict[int, float], int]  # start, bytes by link, class


def ends(capacities: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    fluid, ended = Fluid(np.array(capacities, dtype=float)), [math.nan] * len(flows)
    for k, (start, load, urgency) in enumerate(flows):
        links, amounts = np.array(list(load), dtype=np.int64), np.array(list(load.values()), dtype=float)
        fluid.add(Job(links, amounts, 0.0, partial(ended.__setitem__, k), urgency=urgency), start)
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    return ended


loads = st.dictionaries(st.integers(0, 3), st.floats(0.1, 50), min_size=1, max_size=4)
crowds = st.lists(st.tuples(st.floats(0, 5), loads, st.integers(0, 3)), min_size=1, max_size=8)


@pytest.mark.evidence("geryon")
@pytest.mark.long
@given(st.lists(st.floats(1, 100), min_size=4, max_size=4), crowds)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("geryon", check=1)
def test_lower_classes_change_nothing_for_an_urgent_flow(capacities: list[float], flows: list[Flow]) -> None:
    everything = ends(capacities, flows)
    for lowest in range(3):
        kept = [k for k, (_, _, urgency) in enumerate(flows) if urgency <= lowest]
        found = [everything[k] for k in kept]
        assert found == pytest.approx(ends(capacities, [flows[k] for k in kept]), rel=1e-9, abs=1e-9)


def test_classes_take_turns_and_the_lower_takes_the_rest() -> None:
    """Two bulk flows share a link until an urgent one comes, which another link holds to 6 of 10."""
    bulk, other, urgent = ends([10.0, 6.0], [(0, {0: 60.0}, 1), (0, {0: 60.0}, 1), (2, {0: 30.0, 1: 30.0}, 0)])
    assert urgent == pytest.approx(2 + 5)
    assert bulk == other == pytest.approx(2 + 5 + (120 - 20 - 20) / 10)


@pytest.mark.evidence("geryon")
@pytest.mark.long
@pytest.mark.parametrize("name", CNNS)
@pytest.mark.technique("geryon", check=2)
def test_one_class_is_slicing_alone_and_more_are_never_slower(name: str) -> None:
    layers = profile(name)
    for servers, rate in ((1, 1e10), (2, 1e10), (4, 4e10), (8, 4e9)):
        star = ServerStar(8, servers, rate)
        plain = star_period(layers, star, sliced(layers.nbytes, servers, SLICE_BYTES), carry)
        found = [geryon(layers, star, carry, classes) for classes in (1, 2, 8, 64)]
        assert found[0] == plain
        assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(found)), found
        assert found[-1] >= layers.compute_seconds * (1 - 1e-12)


def test_slices_are_balanced_over_servers() -> None:
    messages = sliced(profile("vgg16").nbytes, 8, SLICE_BYTES)
    totals = [sum(p.nbytes for p in messages if p.server == server) for server in range(8)]
    assert max(totals) - min(totals) <= SLICE_BYTES
    assert max(p.nbytes for p in messages) == SLICE_BYTES
    assert sum(totals) == pytest.approx(sum(profile("vgg16").nbytes))


arrivals = st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 1.0), st.integers(1, 4)), max_size=40)


@pytest.mark.evidence("tensorexpress")
@pytest.mark.long
@given(arrivals, st.lists(st.floats(0, 3), min_size=1, max_size=10))
@settings(max_examples=100, deadline=None)
@pytest.mark.technique("tensorexpress", check=1)
def test_a_top_priority_packet_waits_for_no_more_than_the_one_that_has_begun(
    others: list[tuple[float, float, int]], gaps: list[float]
) -> None:
    """Full packets take a second here; those of the top priority come over one link, which brings one a second."""
    top, now = [], 0.0
    for gap in gaps:
        now += 1.0 + gap
        top.append(Packet(now, 1.0, 0))
    begins = forward([*top, *(Packet(*other) for other in others)], 1.0)
    assert max(begin - packet.seconds for begin, packet in zip(begins, top, strict=False)) <= 1.0 + 1e-9


@pytest.mark.long
@given(arrivals, arrivals)
@settings(max_examples=100, deadline=None)
def test_lower_queues_delay_a_queue_by_one_packet_at_most(
    own: list[tuple[float, float, int]], others: list[tuple[float, float, int]]
) -> None:
    top = [Packet(seconds, nbytes, 0) for seconds, nbytes, _ in own]
    alone, among = forward(top, 1.0), forward([*top, *(Packet(*other) for other in others)], 1.0)
    assert all(late - soon <= 1.0 + 1e-9 for soon, late in zip(alone, among, strict=False))


def fifo(star: ServerStar, tensors: Sequence[tuple[float, float]]) -> list[float]:
    """When each tensor (ready, bytes) is back from one server where nothing overtakes: a packet after another."""
    second = star.seconds_per_byte
    nic = port = 0.0
    summed = []
    for since, nbytes in tensors:
        for size in packets(nbytes):
            nic = max(nic, since) + size * second
            for _ in range(star.workers):
                port = max(port, nic) + size * second
        summed.append(port)
    back, nic, port = [], 0.0, 0.0
    for since, (_, nbytes) in zip(summed, tensors, strict=True):
        for size in packets(nbytes):
            nic = max(nic, since) + star.workers * size * second
            port = max(port, nic) + size * second
        back.append(port)
    return back


def test_a_packet_passes_four_links_and_waits_at_each_for_those_of_the_other_worker() -> None:
    """By hand, in packets' times: both workers' packets reach the switch at 1 and the server at 3, the last reply
    leaves it at 5 and arrives at 6. What another server sums is a packet behind on the worker's two links."""
    star = ServerStar(2, 1, 8 * 1500.0)  # a packet a second
    assert switched([Slice(0, 0, 1500.0)], [0.0], star) == [6.0]
    two = replace(star, servers=2)
    assert switched([Slice(0, 0, 1500.0), Slice(1, 1, 1500.0)], [0.0, 0.0], two) == [6.0, 7.0]
    assert switched([Slice(0, 0, 1500.0), Slice(0, 1, 1500.0)], [2.0], two) == [8.0, 9.0]


def drawn(seed: int, tensors: int = 16) -> LayerTimes:
    draw = Random(seed)
    sizes = tuple(float(draw.randint(20_000, 120_000)) for _ in range(tensors))
    backward = tuple(draw.uniform(0.0, 1e-4) for _ in range(tensors))
    return LayerTimes(tuple(seconds / 2 for seconds in backward), backward, sizes)


def latency(layers: LayerTimes, star: ServerStar, queues: int) -> float:
    """Seconds from the first layer's gradient to its parameters."""
    messages = sliced(layers.nbytes, star.servers)
    ranked = [replace(piece, urgency=class_of(piece.tensor, layers.count, queues)) for piece in messages]
    back = switched(ranked, layers.ready(), star, queues)
    return max(at for piece, at in zip(messages, back, strict=True) if piece.tensor == 0) - layers.ready()[0]


@pytest.mark.evidence("tensorexpress")
@pytest.mark.long
@pytest.mark.technique("tensorexpress", check=2)
def test_one_queue_is_fifo_and_more_bring_the_first_layer_sooner() -> None:
    """Two workers at 10 Gb/s that push to one server at the same time; the mean over ten models."""
    star, models = ServerStar(2, 1, 1e10), [drawn(seed) for seed in range(10)]
    for layers in models:
        order = list(reversed(range(layers.count)))
        back = fifo(star, [(layers.ready()[i], layers.nbytes[i]) for i in order])
        expected = gated_period(layers, back[::-1])
        assert tensorexpress(layers, star, queues=1) == pytest.approx(expected, rel=1e-12)
    means = [np.mean([latency(layers, star, queues) for layers in models]) for queues in (1, 2, 4, 8, 16)]
    assert all(more < fewer for fewer, more in pairwise(means)), means


@pytest.mark.long
def test_queues_shorten_an_iteration_that_waits_for_the_network() -> None:
    layers = profile("vgg16")
    few, many = (tensorexpress(layers, ServerStar(2, 1, 1e10), queues, packet_bytes=1e5) for queues in (1, 4))
    assert layers.compute_seconds < many < 0.96 * few


def bound(layers: LayerTimes, price: Price) -> float:
    """No order of service, however fine, is faster: the tensors up to the i-th all come after the gradient of the i-th,
    and the forward pass from that layer on comes after one of them."""
    since, sent, best = layers.ready(), 0.0, layers.compute_seconds
    for i, nbytes in enumerate(layers.nbytes):
        sent += nbytes * price.seconds_per_byte
        best = max(best, since[i] + sent + sum(layers.forward[i:]))
    return best


def packet_seconds(star: ServerStar) -> float:
    return one_way(star.workers, star.servers, Price(0.0, star.seconds_per_byte)).seconds(1500)


@st.composite
def models(draw: st.DrawFn, most: int = 12, largest: float = 4e6) -> LayerTimes:
    count = draw(st.integers(1, most))
    seconds = st.lists(st.floats(0.0, largest * 1e-9), min_size=count, max_size=count)
    sizes = st.lists(st.floats(100.0, largest), min_size=count, max_size=count)
    return LayerTimes(tuple(draw(seconds)), tuple(draw(seconds)), tuple(draw(sizes)))


stars = st.builds(ServerStar, st.integers(1, 8), st.integers(1, 8), st.sampled_from([1e9, 1e10]))


@pytest.mark.long
@given(models(), stars)
@settings(max_examples=150, deadline=None)
@pytest.mark.technique("mercury", check=1)
def test_packets_come_within_one_each_of_the_preemptive_bound(layers: LayerTimes, star: ServerStar) -> None:
    price = one_way(star.workers, star.servers, Price(0.0, star.seconds_per_byte))
    packet = packet_seconds(star)
    found, least = mercury(layers, star), bound(layers, price)
    assert least * (1 - 1e-12) <= found <= least + layers.count * packet * (1 + 1e-9) + 1e-12
    assert mercury(layers, star, packet_bytes=1e-3) == pytest.approx(least, abs=2e-3 * price.seconds_per_byte + 1e-9)


@pytest.mark.parametrize("name", CNNS)
def test_packets_come_within_one_each_of_the_bound_on_cnns(name: str) -> None:
    layers, star = profile(name), ServerStar(8, 8, 1e10)
    price = one_way(8, 8, Price(0.0, star.seconds_per_byte))
    assert 0 <= mercury(layers, star) - bound(layers, price) <= layers.count * 1500 * price.seconds_per_byte


def bytescheduler(layers: LayerTimes, star: ServerStar, startup_seconds: float, piece_bytes: float) -> float:
    """Pieces by priority with a start-up each, pushed and then pulled, no credit."""
    price = one_way(star.workers, star.servers, Price(startup_seconds, star.seconds_per_byte))
    transfers = [
        Transfer((p.tensor,), (Stage("up", price.seconds(p.nbytes)), Stage("down", price.seconds(p.nbytes))), p.nbytes)
        for p in sliced(layers.nbytes, 1, piece_bytes)
    ]
    return period(layers, transfers, Order({lane: Lane(by_urgency=True) for lane in ("up", "down")}, gated=True))


@pytest.mark.long
@given(models(8, 4e4), stars, st.floats(0.0, 1.0), st.floats(1.0, 100.0))
@settings(max_examples=100, deadline=None)
def test_no_partition_is_faster_than_packets(
    layers: LayerTimes, star: ServerStar, fineness: float, startup: float
) -> None:
    """Pieces from 500 bytes to whole tensors; a start-up, of microseconds, is at least a packet's time."""
    packet, piece = packet_seconds(star), 500 * (max(*layers.nbytes, 501) / 500) ** fineness
    assert mercury(layers, star, startup * packet) <= bytescheduler(layers, star, startup * packet, piece) * (1 + 1e-12)


@given(models(8, 4e4), stars, st.floats(0.0, 1.0), st.floats(1e-3, 1.0))
@settings(max_examples=50, deadline=None)
def test_where_start_ups_are_nothing_a_partition_gains_two_packets_at_most(
    layers: LayerTimes, star: ServerStar, fineness: float, startup: float
) -> None:
    packet, piece = packet_seconds(star), 500 * (max(*layers.nbytes, 501) / 500) ** fineness
    messages = bytescheduler(layers, star, startup * packet, piece)
    assert mercury(layers, star, startup * packet) <= messages + 2 * packet


def test_and_it_does_gain_where_pieces_are_smaller_than_packets() -> None:
    """A tensor of one packet in three pieces: a piece returns while the next is sent, at start-ups below two ninths
    of a packet's time; not any more above."""
    layers, star = LayerTimes((0.0,), (0.0,), (1500.0,)), ServerStar(2, 2, 1e10)
    packet = packet_seconds(star)
    over = [
        mercury(layers, star, s * packet) / bytescheduler(layers, star, s * packet, 500) for s in (0.01, 0.1, 0.3, 1)
    ]
    assert over[0] > 1.4 and over[1] > 1 and over[2] < 1 and over[3] < 1


def test_a_start_up_is_paid_once_per_tensor() -> None:
    layers, star = LayerTimes((0.0,) * 3, (0.0,) * 3, (1.5e6,) * 3), ServerStar(2, 2, 1e10)
    assert mercury(layers, star, 1e-4) - mercury(layers, star) == pytest.approx(3e-4)


def test_what_makes_no_sense_is_refused() -> None:
    layers, star = drawn(0), ServerStar(2, 1, 1e10)
    few = LayerTimes((1.0, 1.0), (1.0, 1.0), (5.0, 7.0))
    assert geryon(few, star, carry, classes=1) > 4 and tensorexpress(few, star, 1, packet_bytes=1) > 4
    for refused in (
        lambda: ServerStar(0, 1, 1e9),
        lambda: ServerStar(1, 1, 0.0),
        lambda: geryon(layers, star, carry, classes=0),
        lambda: tensorexpress(layers, star, queues=0),
        lambda: tensorexpress(layers, star, packet_bytes=0),
        lambda: mercury(layers, star, packet_bytes=0),
    ):
        with pytest.raises(LaconicError):
            refused()
