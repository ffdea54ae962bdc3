"""The cost of a communication plan: its messages on the lanes of the network, overlapped with computing."""

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
class PlanTrace:
    """One iteration from the start of backward: its length, when each message was in flight, when nothing computed."""

    period_seconds: float
    compute_seconds: float
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    idle: tuple[tuple[float, float], ...] = ()

    def waits_between(self, begin: float, end: float) -> float:
        """Return for how long nothing computed between these times."""
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self.idle)

    @property
    def exposed_seconds(self) -> float:
        """The time that communication adds to computing."""
        return self.period_seconds - self.compute_seconds


def trace(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> PlanTrace:
    """Return the times of an iteration that sends its messages by this plan."""
    layers, transfers, order = tasks_of(plan, arrival, timing)
    iteration = simulated(layers, transfers, order)
    return PlanTrace(iteration.period, layers.compute_seconds, iteration.begins, iteration.ends, iteration.idle)


def predicted_seconds(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> float:
    """Return the predicted time of an iteration with this plan."""
    return trace(plan, arrival, timing).period_seconds


def tasks_of(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> tuple[LayerTimes, list[Transfer], Order]:
    """Return the iteration's task graph: layers in the order of the forward pass, messages as transfers.

    In collectives, messages are sent in the plan's order, whichever is ready first. With a server, pushes and pulls
    have a lane each, and if the plan has a credit the most urgent message is sent first.
    """
    transfers = _transfers(plan, arrival, timing, in_turn=not timing.duplex)
    lanes = {lane: _queue(plan) for lane in ("push", "pull")} if timing.duplex else {}
    order = Order(lanes, gated=plan.gated, postponed=len(plan.postponed))
    return timing.layers(plan.tensors, arrival), transfers, order


def in_order_of_urgency(plan: CommPlan, arrival: Sequence[int], timing: Timing) -> CommPlan:
    """Return the plan with its messages in the order of a queue that serves the most urgent message first.

    Workers must agree on the order of collectives; all of them compute it ahead from the timing they share.
    """
    ready = timing.layers(plan.tensors, arrival).ready(len(plan.postponed))
    position = urgencies(arrival)
    arrivals = []
    for number, message in enumerate(plan.messages):
        own = [position[i] for i, _, _ in plan.carried(message)]
        arrivals.append((max(ready[place] for place in own), min(own), number))
    seconds = [timing.seconds(plan, message) for message in plan.messages]
    ordered = service_order(sorted(arrivals), seconds, plan.message_bytes, _queue(plan).credit_bytes)
    return replace(plan, messages=tuple(plan.messages[k] for k in ordered))


def service_order(
    arrivals: Sequence[tuple[float, int, int]], seconds: Sequence[float], nbytes: Sequence[float], credit_bytes: float
) -> list[int]:
    """Return the order in which a lane serves arrivals of (time, urgency, number): the most urgent first.

    The lane admits so many bytes ahead of time, which are then served in order. This is what `lanes.serve` does, for
    one lane that nothing else depends on.
    """
    ordered: list[int] = []
    queue: list[tuple[int, int]] = []
    admitted: deque[int] = deque()
    now, ahead, arrived = 0.0, 0.0, 0
    while len(ordered) < len(arrivals):
        while arrived < len(arrivals) and arrivals[arrived][0] <= now:
            heappush(queue, (arrivals[arrived][1], arrived))
            arrived += 1
        while queue and (not admitted or ahead < credit_bytes):
            number = arrivals[heappop(queue)[1]][2]
            admitted.append(number)
            ahead += nbytes[number]
        if not admitted:
            now = arrivals[arrived][0]
            continue
        number = admitted.popleft()
        ahead -= nbytes[number]
        ordered.append(number)
        now += seconds[number]
    return ordered


def _queue(plan: CommPlan) -> Lane:
    if plan.credit_bytes is None:
        return Lane()
    ahead = plan.credit_bytes - max(plan.message_bytes, default=0)  # the credit counts the message in flight too
    return Lane(by_urgency=True, credit_bytes=max(0, ahead))


def _transfers(plan: CommPlan, arrival: Sequence[int], timing: Timing, in_turn: bool) -> list[Transfer]:
    position = urgencies(arrival)
    first = len(plan.postponed)

    def backward_order(place: int) -> int:
        """Return a gradient's position in backward; the postponed ones are last, the first of them first."""
        return len(arrival) + place if place < first else len(arrival) - place

    transfers: list[Transfer] = []
    latest: tuple[int, ...] = ()
    for message in plan.messages:
        own = tuple(position[i] for i, _, _ in plan.carried(message))
        awaited = {*own, *(position[i] for i in message.after), *(latest if in_turn else ())}
        latest = (max(awaited, key=backward_order),)
        seconds = timing.seconds(plan, message)
        halves = ("push", "pull") if timing.duplex else ("net", "net") if plan.halves else ()
        stages = tuple(Stage(lane, seconds / 2) for lane in halves) or (Stage("net", seconds),)
        cut = 1 if plan.halves and not timing.duplex else len(stages)
        nbytes = plan.nbytes(message)
        transfers.append(Transfer(own, stages[:cut], nbytes, after=latest, later=stages[cut:]))
    return transfers
