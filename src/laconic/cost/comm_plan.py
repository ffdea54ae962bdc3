"""What a plan costs: its messages on the lanes of the network, beside computing, once iterations repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from laconic.cost.iteration import Order, Stage, Transfer, simulated
from laconic.cost.lanes import Lane
from laconic.values.comm_plan import CommPlan, urgencies
from laconic.values.layer_times import LayerTimes
from laconic.values.timing import Timing


@dataclass(frozen=True)
class Trace:
    """One iteration from the start of backward: its length, when each message was on its way, when nothing computed."""

    period_seconds: float
    compute_seconds: float
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    idle: tuple[tuple[float, float], ...] = ()

    def waits_between(self, begin: float, end: float) -> float:
        """For how long nothing computed meanwhile."""
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self.idle)

    @property
    def exposed_seconds(self) -> float:
        """What communication adds to computing."""
        return self.period_seconds - self.compute_seconds


def trace(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> Trace:
    """An iteration as the plan has it."""
    layers, transfers, order = tasks_of(plan, arrival, timing)
    found = simulated(layers, transfers, order)
    return Trace(found.period, layers.compute_seconds, found.begins, found.ends, found.idle)


def predicted_seconds(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> float:
    return trace(plan, arrival, timing).period_seconds


def tasks_of(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> tuple[LayerTimes, list[Transfer], Order]:
    """The iteration's task graph: layers in the order of the forward pass, messages as transfers.

    Among equals messages are launched in the plan's order, whichever is ready first. At a server, pushes and pulls have
    a lane each, and if the plan has a credit the most urgent goes first.
    """
    transfers = _transfers(plan, arrival, timing, in_turn=not timing.duplex)
    lanes = {lane: _queue(plan) for lane in ("push", "pull")} if timing.duplex else {}
    order = Order(lanes, gated=plan.gated, postponed=len(plan.postponed))
    return timing.layers(plan.tensors, arrival), transfers, order


def in_order_of_urgency(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> CommPlan:
    """The same messages in the order in which a queue that serves the most urgent first would start them.

    Workers that meet in collectives must agree on an order, and whoever sees more of the iteration than one moment can
    tell it ahead: from the timing that all of them share.
    """
    ready = timing.layers(plan.tensors, arrival).ready(len(plan.postponed))
    position = urgencies(arrival)
    coming = []
    for number, message in enumerate(plan.messages):
        own = [position[i] for i, _, _ in plan.carried(message)]
        coming.append((max(ready[place] for place in own), min(own), number))
    seconds = [timing.seconds(plan, message) for message in plan.messages]
    ordered = served(sorted(coming), seconds, plan.message_bytes, _queue(plan).credit_bytes)
    return replace(plan, messages=tuple(plan.messages[k] for k in ordered))


def served(
    coming: Sequence[tuple[float, int, int]], seconds: Sequence[float], nbytes: Sequence[float], credit_bytes: float
) -> list[int]:
    """In which order a lane serves what comes as (time, urgency, number): the most urgent first, of which it takes over
    so many bytes ahead. What `lanes.serve` does, for one lane that nobody waits for."""
    found: list[int] = []
    waits: list[tuple[int, int]] = []
    taken: deque[int] = deque()
    now, ahead, come = 0.0, 0.0, 0
    while len(found) < len(coming):
        while come < len(coming) and coming[come][0] <= now:
            heappush(waits, (coming[come][1], come))
            come += 1
        while waits and (not taken or ahead < credit_bytes):
            number = coming[heappop(waits)[1]][2]
            taken.append(number)
            ahead += nbytes[number]
        if not taken:
            now = coming[come][0]
            continue
        number = taken.popleft()
        ahead -= nbytes[number]
        found.append(number)
        now += seconds[number]
    return found


def _queue(plan: CommPlan) -> Lane:
    if plan.credit_bytes is None:
        return Lane()
    ahead = plan.credit_bytes - max(plan.message_bytes, default=0)  # the credit counts the one on its way
    return Lane(by_urgency=True, credit_bytes=max(0, ahead))


def _transfers(plan: CommPlan, arrival: Sequence[int], timing: Timing, in_turn: bool) -> list[Transfer]:
    position = urgencies(arrival)
    first = len(plan.postponed)

    def moment(place: int) -> int:
        """In which order backward brings gradients; the postponed ones last, the first of them first."""
        return len(arrival) + place if place < first else len(arrival) - place

    transfers: list[Transfer] = []
    latest: tuple[int, ...] = ()
    for message in plan.messages:
        own = tuple(position[i] for i, _, _ in plan.carried(message))
        awaited = {*own, *(position[i] for i in message.after), *(latest if in_turn else ())}
        latest = (max(awaited, key=moment),)
        seconds = timing.seconds(plan, message)
        halves = ("push", "pull") if timing.duplex else ("net", "net") if plan.halves else ()
        stages = tuple(Stage(lane, seconds / 2) for lane in halves) or (Stage("net", seconds),)
        cut = 1 if plan.halves and not timing.duplex else len(stages)
        nbytes = plan.nbytes(message)
        transfers.append(Transfer(own, stages[:cut], nbytes, after=latest, later=stages[cut:]))
    return transfers
