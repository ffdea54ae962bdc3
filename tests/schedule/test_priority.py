"""Pieces by priority: the queue with its credit, the simulator's ends, and what the virtual engine's log shows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.comm_plan import tasks_of, trace
from laconic.cost.iteration import Transfer, period
from laconic.real.send_queue import SendQueue as RealQueue
from laconic.schedule.bytescheduler import P3, ByteScheduler
from laconic.schedule.wfbp import WFBP
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.clock import Operation
from laconic.virtual.send_queue import VirtualSendQueue as VirtualQueue
from laconic.worker import Priority
from tests.schedule.chains import Chain
from tests.schedule.cnns import CNNS, Layer
from tests.schedule.plans import Case, cases, of_layers

ENDLESS = 2**40


def test_a_credit_counts_elements_of_the_widest_type() -> None:
    specs = [TensorSpec("a", (8,), torch.float32), TensorSpec("b", (8,), torch.float64)]
    plans = [ByteScheduler(4, 10).plan(kept, range(len(kept))) for kept in (specs[:1], specs)]
    assert [plan.credit_bytes for plan in plans] == [40, 80]
    assert P3(4).plan(specs, [1, 0]).credit_bytes == 0, "one slice at a time"


# ------------------------------------------------------------------------------------------------ the queue


class ByHand:
    """An operation in flight that ends on request."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self) -> None:
        assert self._over.wait(30)


class OfThread:
    """The real workers' queue: what it hands over is known when it has."""

    def __init__(self) -> None:
        self._queue = RealQueue()
        self._started: queue.Queue[int] = queue.Queue()
        self._handles: dict[int, ByHand] = {}

    def put(self, number: int, urgency: int, nbytes: int, credit: int) -> None:
        handle = self._handles[number] = ByHand()

        def start() -> ByHand:
            self._started.put(number)
            return handle

        self._queue.put(start, Priority(urgency, credit), nbytes)

    def next(self) -> int:
        return self._started.get(timeout=30)

    def end(self, number: int) -> None:
        self._handles[number].end()

    def idle(self) -> bool:
        return self._started.empty()


class _Now:
    """A clock on which everything happens at once."""

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        act()

    def end(self, operation: Operation, seconds: float, error: Exception | None = None) -> None:
        operation.ended_seconds, operation.error = seconds, error
        for act in operation.on_end:
            act(seconds)


class OfClock:
    """The virtual workers'."""

    def __init__(self) -> None:
        self._clock: Any = _Now()
        self._queue = VirtualQueue(self._clock)
        self._started: list[int] = []
        self._operations: dict[int, Operation] = {}

    def put(self, number: int, urgency: int, nbytes: int, credit: int) -> None:
        def say(seconds: float) -> Operation:
            self._started.append(number)
            self._operations[number] = Operation(str(number))
            return self._operations[number]

        self._queue.put(say, Priority(urgency, credit), nbytes, 0.0, "piece")

    def next(self) -> int:
        return self._started.pop(0)

    def end(self, number: int) -> None:
        self._clock.end(self._operations[number], 0.0)

    def idle(self) -> bool:
        return not self._started


PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 10)), min_size=1, max_size=8)


@pytest.mark.technique("bytescheduler_ps", check=1)
@pytest.mark.parametrize("make", [OfThread, OfClock])
@given(bursts=st.lists(PIECES, min_size=1, max_size=4), credit=st.integers(0, 30))
@settings(max_examples=25, deadline=None)
def test_the_queue_hands_over_the_most_urgent_as_far_as_the_credit_goes(
    make: Any, bursts: list[list[tuple[int, int]]], credit: int
) -> None:
    """Pieces come in bursts while the credit is spent; whenever the oldest is acknowledged others are handed over."""
    made, sizes = make(), []  # type: Any, list[int]
    waiting: list[tuple[int, int]] = []
    is_in_flight: list[int] = []

    def put(urgency: int, nbytes: int) -> None:
        waiting.append((urgency, len(sizes)))
        made.put(len(sizes), urgency, nbytes, credit)
        sizes.append(nbytes)

    def take() -> None:
        urgent = min(waiting)
        number = made.next()
        assert number == urgent[1], "the smallest of those that are ready, the first of its equals"
        waiting.remove(urgent)
        before = sum(sizes[n] for n in is_in_flight)
        is_in_flight.append(number)
        assert before < max(credit, 1) and before + sizes[number] <= credit + max(sizes)

    for burst in bursts:
        if sum(sizes[n] for n in is_in_flight) < max(credit, 1):
            put(9, credit + 1)
            take()
        for urgency, nbytes in burst:
            put(urgency, nbytes)
        made.end(is_in_flight.pop(0))
        while waiting and sum(sizes[n] for n in is_in_flight) < max(credit, 1):
            take()
    while is_in_flight:
        made.end(is_in_flight.pop(0))
        while waiting and sum(sizes[n] for n in is_in_flight) < max(credit, 1):
            take()
    assert not waiting and made.idle()


# ------------------------------------------------------------------------------------------------ the virtual engine

CHAIN = Chain((12, 20, 16, 25, 11, 30, 8, 21, 5))


def served(chain: Chain, word: str, servers: int = 1) -> Any:
    return chain.train(f"bsp / none / ps / {word}", servers=servers)


@pytest.mark.long
@pytest.mark.technique("bytescheduler_ps", check=1)
@pytest.mark.technique("p3", check=2)
@pytest.mark.parametrize("word", ["p3", "bytescheduler(1000, credit=1)", "bytescheduler(1000, credit=600)"])
def test_the_log_shows_no_less_urgent_piece_overtaking(word: str) -> None:
    """From the moment at which a gradient is ready until it leaves, nothing less urgent leaves: it was blocked by what
    was in flight then, which with P3 is one slice."""
    run = served(CHAIN, word)
    pushes = CHAIN.deliveries(run, "contribute", step=7)
    assert set(pushes) == set(range(len(CHAIN.sizes)))
    ready = {i: CHAIN.computed(run, "backward", i, 7)[1] for i in pushes}
    credit = 4 * (1 if word == "p3" else int(word.partition("=")[2][:-1]))
    waited = 0
    for i, trip in pushes.items():
        for j, other in pushes.items():
            if ready[i] < other.begin_seconds < trip.begin_seconds:
                waited += 1
                assert j < i
        is_in_flight = [x for x in pushes.values() if x.begin_seconds <= trip.begin_seconds < x.end_seconds]
        assert sum(x.nbytes for x in is_in_flight) <= credit + 4 * max(CHAIN.sizes)
        if word == "p3":
            assert is_in_flight == [trip]
    assert waited, "the network is slow enough for a queue"


@pytest.mark.long
@pytest.mark.technique("bytescheduler_ps", check=3)
def test_a_layer_computes_while_later_ones_are_still_in_flight() -> None:
    """The next forward pass has begun with the second layer when some of the last layer's averages have not come; and
    the model is that of one buffer after backward."""
    chain = Chain((*CHAIN.widths[:-1], 100))  # of which the last tensor alone is cut, into five
    run = served(chain, "bytescheduler(420, credit=1)")
    begun = chain.computed(run, "forward", 1, 8)[0]
    assert run.rpc is not None
    messages = [t for t in run.rpc.deliveries if (t.kind, t.to, t.nbytes) == ("sum", 0, 4 * 420)]
    ends = [t.end_seconds for t in messages if t.begin_seconds > chain.computed(run, "backward", 7, 7)[1]]
    assert len(ends) == 10 and begun < ends[4] <= chain.computed(run, "forward", 7, 8)[0]
    plain = served(chain, "sequential")
    for found, expected in zip(run.results, plain.results, strict=True):
        assert all(map(torch.equal, found, expected))


# ------------------------------------------------------------------------------------------------ the simulator


@dataclass(frozen=True)
class Ranked(Transfer):
    """Served in an order of its own."""

    rank: int = 0

    @property
    def urgency(self) -> int:
        return self.rank


@pytest.mark.long
@given(cases(duplex=True, most=6, elements=6, startups=[0.0]), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("bytescheduler_ps", check=2)
def test_no_other_order_of_single_elements_is_faster(given: Case, chance: Any) -> None:
    layers, transfers, order = tasks_of(given.plan(ByteScheduler(1, credit=0)), given.arrival, given.timing)
    best = period(layers, transfers, order)
    for _ in range(6):
        ranks = list(range(len(transfers)))
        chance.shuffle(ranks)
        tried = [
            Ranked(t.tensors, t.stages, t.nbytes, after=t.after, rank=r) for t, r in zip(transfers, ranks, strict=True)
        ]
        assert best <= period(layers, tried, order) * (1 + 1e-9) + 1e-12


@pytest.mark.long
@given(cases())
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("bytescheduler_a2a", check=1)
def test_whole_tensors_without_priorities_are_wait_free_backpropagation(given: Case) -> None:
    plan = ByteScheduler(ENDLESS, credit=ENDLESS).plan(given.specs, given.arrival)
    assert given.seconds(replace(plan, credit_bytes=None)) == given.seconds(WFBP(0))


@pytest.mark.long
@given(cases(duplex=True))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("p3", check=1)
def test_whole_tensors_without_priorities_are_pushed_as_they_come(given: Case) -> None:
    plan = replace(given.plan(P3(ENDLESS)), credit_bytes=None)
    assert given.seconds(plan) == pytest.approx(given.seconds(WFBP(0)), rel=1e-12)


@pytest.mark.long
@given(cases(duplex=True), st.integers(500, 5000))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("p3", check=2)
def test_what_is_more_urgent_waits_for_one_slice(given: Case, elements: int) -> None:
    """Of the time between a gradient and its slice's start, less urgent slices have one slice's at most."""
    plan = given.plan(P3(elements))
    found = trace(plan, given.arrival, given.timing)
    ready = {i: sum(given.timing.backward[i:]) for i in given.arrival}
    halves = [given.timing.seconds(plan, m) / 2 for m in plan.messages]
    longest = max(halves)
    for message, begin in zip(plan.messages, found.begins, strict=True):
        ((tensor, _, _),) = plan.carried(message)
        blocked = sum(
            max(0.0, min(begin, since + seconds) - max(since, ready[tensor]))
            for other, since, seconds in zip(plan.messages, found.begins, halves, strict=True)
            if other.urgency > message.urgency
        )
        assert blocked <= longest * (1 + 1e-9) + 1e-12


def vgg_like() -> list[Layer]:
    """Without the middle one of its dense layers: then the largest tensor is the last but one."""
    *convolutions, largest, _, last = CNNS["vgg16"]()
    return [*convolutions, largest, last]


@pytest.mark.technique("p3", check=3)
def test_slices_by_priority_hide_what_wait_free_backpropagation_cannot() -> None:
    work = vgg_like()
    total = sum(multiplications for _, multiplications in work)
    shares = [0.25 * multiplications / total for _, multiplications in work]
    layers = LayerTimes(
        tuple(share / 3 for share in shares),
        tuple(2 * share / 3 for share in shares),
        tuple(4.0 * weights for weights, _ in work),
    )
    price = Price(0.0, 2 * layers.compute_seconds / sum(layers.nbytes))  # a push is half of it
    given = of_layers(layers, price, duplex=True)
    in_order = replace(given.plan(P3()), credit_bytes=None)  # the same slices as they become ready
    assert given.seconds(P3()) <= 0.9 * min(given.seconds(WFBP(0)), given.seconds(in_order))
