"""All-reduces chosen by probing: every member finds the same network, takes the same program, and sums exactly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import laconic
from laconic.collective import adaptive
from laconic.collective.adaptive import DRIFT, WINDOW, Adaptive, Drift, size_class
from laconic.collective.cheapest import NEAR, cheapest, network_of, read_choice, synthesised_for
from laconic.collective.choose import recipes
from laconic.collective.live_probe import Measured, measured_links, probe_bytes
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.network_tree import Level, LinkChange, Network
from laconic.network.placed import Placed
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from tests.cases import first_of

HOSTS = Network(6, (Level(1, 1e9, 20e-6), Level(3, 2e8, 80e-6)))
FLAT = Network.flat(6, 1e8, 50e-6)
SLOW = Network.flat(5, [1e8, 1e8, 2.5e7, 1e8, 1e8], 50e-6)


def done(communication: Any) -> Any:
    exchange: Any = InFlight(communication)
    complete([exchange])
    return exchange.result


def measured(network: Network) -> list[tuple[Measured, float]]:
    def work() -> tuple[Measured, float]:
        worker = connect()
        return done(worker.world.measure(torch.device("cpu"))), worker.ledger.sent_bytes()

    return laconic.simulate(work, network.size, network=network).results


@pytest.mark.parametrize("network", [HOSTS, FLAT, SLOW, Network.flat(2, 1e9)])
def test_members_measure_the_network_that_there_is_and_find_the_same(network: Network) -> None:
    found = measured(network)
    assert all(one == found[0][0] for one, _ in found)
    known = measured_links(network)
    apart = ~np.eye(network.size, dtype=bool)
    probe, expected = found[0][0].probe, known.probe
    np.testing.assert_allclose(probe.bits_per_second[apart], expected.bits_per_second[apart], rtol=0.01)
    np.testing.assert_allclose(probe.latency_seconds[apart], expected.latency_seconds[apart], atol=4e-6)
    assert found[0][0].backend_seconds(1e6) == pytest.approx(known.backend_seconds(1e6), rel=0.01)
    assert found[0][0].message_seconds < 1e-6  # virtual workers spend nothing beside the network


@pytest.mark.parametrize("size", first_of([2, 3, 9, 40], 3))
def test_what_a_probe_sends_is_bounded_and_is_control(size: int) -> None:
    def work() -> tuple[float, float]:
        worker = connect()
        done(worker.world.measure(torch.device("cpu")))
        return worker.ledger.sent_bytes(), worker.ledger.sent_bytes(laconic.worker.Kind.PAYLOAD)

    for sent, payload in laconic.simulate(work, size).results:
        assert payload == 0
        assert sent <= 4 * (size + 1) * (probe_bytes(size) + 1000) <= 50e6


def test_members_that_are_close_are_found_and_slow_ones_come_last() -> None:
    inside, order, graph = network_of(measured_links(HOSTS))
    assert inside == 3 and {frozenset(order[:3]), frozenset(order[3:])} == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    np.testing.assert_allclose(graph.bits_per_second[-4:], 2e8, rtol=0.01)
    assert network_of(measured_links(SLOW))[1] == (0, 1, 3, 4, 2)


@pytest.mark.parametrize(("size", "seed"), [(4, 0), (6, 1), (7, 2)])
def test_a_ring_of_links_without_a_switch_is_found_and_both_its_directions_are_used(size: int, seed: int) -> None:
    places = np.random.default_rng(seed).permutation(size).tolist()
    links = [(places[k], places[(k + 1) % size], 1e8) for k in range(size)]
    graph = Graph.of(size, links, latency_seconds=5e-5)
    known = measured_links(graph)
    inside, order, found = network_of(known)
    there = {frozenset(link[:2]) for link in links}
    assert inside == 1 and {frozenset(pair) for pair in found.ends.tolist()} == there
    assert all(frozenset(pair) in there for pair in pairwise(order))
    chosen = read_choice(cheapest(known, 2**23), size).program
    assert chosen is not None and chosen.name == "two_rings"
    halves = price(recipes("all_reduce", size)[0][1], 2**23, Placed(graph, tuple(order))).seconds / 2
    assert price(chosen, 2**23, graph).seconds == pytest.approx(halves, rel=0.02)


def summing(how: str, sizes: list[int], seen: Callable[[Adaptive, int], Any]) -> Any:
    """What is seen after each of these sums of integers, which are exact."""
    worker = connect()
    one, found = Adaptive.of(worker.world, how), []
    assert Adaptive.of(worker.world, how) is one
    for numel in sizes:
        x = torch.arange(numel) * (worker.rank + 1)
        done(one.sum(x))
        assert torch.equal(x, torch.arange(numel) * (worker.size * (worker.size + 1) // 2))
        found.append(seen(one, x.nbytes))
    return found


@pytest.mark.parametrize("network", [HOSTS, FLAT, SLOW, Network.flat(1, 1e9)])
def test_one_probe_serves_all_sizes_and_all_members_choose_alike(network: Network) -> None:
    def work() -> Any:
        numels = [3, 1000, 100_000, 100_000, 0]
        seen = lambda one, nbytes: (one.probes, str(one.choice(nbytes)) if nbytes and network.size > 1 else "")  # noqa: E731
        return summing("auto", numels, seen)

    found = laconic.simulate(work, network.size, network=network).results
    assert all(one == found[0] for one in found)
    assert {probes for probes, _ in found[0]} == {min(network.size - 1, 1)}


@pytest.mark.parametrize("network", [HOSTS, FLAT, SLOW])
@pytest.mark.parametrize("nbytes", [2**10, 2**16, 2**23])
def test_the_choice_is_as_cheap_as_the_cheapest_and_a_ring_where_that_is(network: Network, nbytes: int) -> None:
    chosen = read_choice(cheapest(measured_links(network), nbytes), network.size)
    every = {r: price(p, nbytes, network).seconds for r, p in recipes("all_reduce", network.size, network.host_size)}
    assert chosen.program is not None
    assert price(chosen.program, nbytes, network).seconds <= 1.02 * NEAR * min(every.values())
    assert chosen.seconds(nbytes) == pytest.approx(price(chosen.program, nbytes, network).seconds, rel=0.02)
    ring = min(seconds for recipe, seconds in every.items() if recipe.name == "ring")
    if ring <= NEAR / 1.02 * min(every.values()):
        assert chosen.program.name == "ring"


def test_the_transports_own_all_reduce_is_taken_where_it_is_faster() -> None:
    known = measured_links(FLAT)
    table = known.table.copy()
    table[:, -2:] *= 0.5
    assert read_choice(cheapest(Measured(table, known.nbytes), 2**20), 6).program is None
    ring = read_choice(cheapest(known, 2**20), 6).program
    assert ring is not None and ring.name == "ring"  # as fast as the transport's: the ring is taken


def test_messages_of_programs_in_flight_at_once_do_not_meet() -> None:
    """A member that has nothing to do in the first steps of one program must not be ahead in that program."""
    programs = [program for _, program in recipes("all_reduce", 6, 3)]

    def work() -> None:
        worker = connect()
        group = worker.world
        for seed in range(2):
            draw = np.random.default_rng(seed)
            chosen = [programs[k] for k in draw.integers(0, len(programs), 4)]
            vectors = [torch.arange(int(n)) * (worker.rank + 1) for n in draw.integers(1, 40, 4)]
            complete([InFlight(group.run(p, x)) for p, x in zip(chosen, vectors, strict=True)])  # type: ignore[arg-type]
            assert all(torch.equal(x, torch.arange(len(x)) * 21) for x in vectors)

    laconic.simulate(work, 6, network=HOSTS)


@pytest.mark.parametrize("how", ["auto", "synthesised"])
def test_exchanges_begun_at_once_wait_for_one_decision(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def work() -> tuple[int, list[str]]:
        worker = connect()
        one = Adaptive.of(worker.world, how)
        for _ in range(3):
            vectors = [torch.arange(n) * (worker.rank + 1) for n in (40, 41, 40, 2000, 2)]
            complete([InFlight(one.sum(x)) for x in vectors])  # type: ignore[arg-type]
            assert all(torch.equal(x, torch.arange(len(x)) * 10) for x in vectors)
        return one.probes, [str(one.choice(8 * n)) for n in (40, 2000, 2)]

    found = laconic.simulate(work, 4, network=Network(4, (Level(1, 1e9, 1e-5), Level(2, 1e8, 5e-5)))).results
    assert all(one == found[0] for one in found) and found[0][0] == 1


def test_a_network_that_no_solver_takes_is_refused_with_the_way_out() -> None:
    with pytest.raises(LaconicError, match="Write collective\\(auto\\)"):
        synthesised_for(measured_links(Network.flat(40, 1e9, 1e-5)), 2**20)


# ------------------------------------------------------------------------------------------------ drift


def ticking(network: Network, exchanges: int, numel: int = 20_000) -> tuple[list[Any], float]:
    """The number of probes, the program and the time after each of these sums, and the bytes sent in all."""

    def work() -> Any:
        def seen(one: Adaptive, nbytes: int) -> Any:
            return one.probes, getattr(one.choice(nbytes).program, "name", None), connect().clock_seconds()

        return summing("auto", [numel] * exchanges, seen), connect().ledger.sent_bytes(laconic.worker.Kind.CONTROL)

    found = laconic.simulate(work, network.size, network=network).results
    assert all([row[:2] for row in one] == [row[:2] for row in found[0][0]] for one, _ in found)
    return found[0]


@pytest.mark.long
def test_members_probe_again_when_a_link_has_become_slow_and_not_before() -> None:
    calm = Network.flat(3, 1e8, 50e-6)
    steady, control = ticking(calm, 3 * WINDOW + 2)
    assert steady[-1][0] == 1
    once = measured(calm)[0][1]
    assert control - once <= 3 * 2 * 8 * WINDOW + 2000  # a comparison a window, and what was chosen
    changed = Network(3, calm.levels, changes=(LinkChange(steady[WINDOW + 3][2], 2, 1e7),))
    found, _ = ticking(changed, 4 * WINDOW + 2)
    assert [row[0] for row in found] == [1] * 2 * WINDOW + [2] * (2 * WINDOW + 2)


@pytest.mark.long
def test_what_is_chosen_again_is_cheaper_on_the_network_that_there_is_now() -> None:
    """One of four workers gets a link of a tenth: a ring sends over it what a tree does of which it is mostly a leaf,
    and a half more."""
    calm = Network.flat(4, 1e8, 50e-6)
    at = 20 * price(recipes("all_reduce", 4)[0][1], 1.6e6, calm).seconds + 1.0
    found, _ = ticking(Network(4, calm.levels, changes=(LinkChange(at, 2, 1e7),)), 3 * WINDOW, 200_000)
    first = next(k for k, row in enumerate(found) if row[0] == 2)
    times = np.diff([row[2] for row in found])
    before, after = float(np.median(times[first - 4 : first - 1])), float(np.median(times[first + 1 :]))
    assert found[first - 1][1] == "ring" and found[-1][1] != "ring" and after < 0.92 * before
    now = Network.flat(4, [1e8, 1e8, 1e8, 1e7], 50e-6)  # the slow one is the last, as where it was found
    assert after <= 1.05 * min(price(program, 1.6e6, now).seconds for _, program in recipes("all_reduce", 4))


def test_waiting_for_late_members_is_no_drift() -> None:
    """One member begins each exchange late from some time on: the others wait, and nobody probes."""

    def work() -> int:
        worker: Any = connect()
        one = Adaptive.of(worker.world, "auto")
        for k in range(3 * WINDOW + 1):
            if worker.rank == 1 and k > WINDOW:
                done(_pause(worker))
            done(one.sum(torch.ones(20_000)))
        return one.probes

    assert set(laconic.simulate(work, 3, network=Network.flat(3, 1e8, 50e-6)).results) == {1}


def _pause(worker: Any) -> Any:
    worker._simulation.clock.runner(worker.rank).pass_time(1.0)
    yield []


def test_drift_is_told_from_the_shortest_times_of_all_members() -> None:
    def windows(*ratios: float) -> list[bool]:
        drift = Drift()
        found = []
        for ratio in ratios:
            for _ in range(WINDOW):
                drift.end(drift.begin(), ratio)
            drift.begin()
            found.append(drift.has_drifted(drift.times()))
            drift._started -= 1
        return found

    assert windows(1, 1.4, 1 / 1.4, 1) == [False] * 4
    assert windows(2, 2, 2 * 1.01 * DRIFT) == [False, False, True]
    assert windows(2, 2 / 1.01 / DRIFT) == [False, True]
    assert windows(1, 2, 1, 2, 2, 2) == [False, True, False, False, True, False]  # twice as patient after each probe


def test_sizes_are_classed_by_powers_of_two() -> None:
    assert [size_class(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 1, 2, 2, 3, 10, 11]
    assert set(adaptive.CHOOSERS) == {"auto", "synthesised"}


@pytest.mark.long
def test_training_with_what_is_chosen_is_training() -> None:
    def train(sentence: str) -> list[torch.Tensor]:
        torch.manual_seed(laconic.rank())
        model: Any = torch.nn.Sequential(torch.nn.Linear(7, 50), torch.nn.Linear(50, 3))
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, sentence)
        for _ in range(3):
            model(torch.randn(3, 7)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    plain = laconic.simulate(lambda: train("bsp"), 6, network=HOSTS).results[0]
    for sentence in ("bsp / none / collective(auto)", "bsp / none / collective(auto) / mgwfbp"):
        found = laconic.simulate(lambda s=sentence: train(s), 6, network=HOSTS).results
        for parameters in found:
            for ours, first, theirs in zip(parameters, found[0], plain, strict=True):
                assert torch.equal(ours, first)
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
