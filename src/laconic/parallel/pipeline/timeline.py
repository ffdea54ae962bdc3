"""The price of a pipeline: when each device does what, on a network."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from laconic.collective import flows
from laconic.errors import PipelineError
from laconic.network.network_tree import Network
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.task import Op, Task

Chooser = Callable[[Sequence[Task], Callable[[Task], bool]], int | None]
"""Which of the tasks that a device has left comes next, from whether a task could begin now; None to wait."""


def in_order(left: Sequence[Task], can_begin: Callable[[Task], bool]) -> int | None:
    """Choose the first task that is left, and wait until it can begin."""
    return 0 if can_begin(left[0]) else None


class Bar(NamedTuple):
    """A task on the clock."""

    task: Task
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """When each device did what.

    - `bars`: the tasks of each device with their seconds.
    - `sent_bytes`: what each device has sent to other devices.
    """

    bars: tuple[tuple[Bar, ...], ...]
    sent_bytes: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the last task ends."""
        return max((bar.end for row in self.bars for bar in row), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each device computes."""
        return tuple(sum(bar.end - bar.begin for bar in row) for row in self.bars)

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they do not compute."""
        return 1 - sum(self.busy) / (self.seconds * len(self.bars)) if self.seconds else 0.0


def timeline(
    pipeline: Pipeline,
    costs: StageCosts,
    network: Network | None = None,
    choose: Chooser = in_order,
    delay: Callable[[Task], float] | None = None,
) -> Timeline:
    """Return when each device does what.

    - `costs`: what stages take.
    - `network`: where the devices are; without one, messages take no time. Messages between two devices travel one
      after the other, and all share links as the network says.
    - `choose`: which task comes next, where a device may depart from its order.
    - `delay`: seconds that the message with a task's result takes beyond what the network says.
    """
    return _Run(pipeline, costs, network, choose, delay).timeline()


class _Run:
    """The state of one run through a pipeline's orders, advanced from event to event."""

    def __init__(
        self,
        pipeline: Pipeline,
        costs: StageCosts,
        network: Network | None,
        choose: Chooser,
        delay: Callable[[Task], float] | None,
    ) -> None:
        if len(costs.forward) != pipeline.stages:
            raise PipelineError(f"{pipeline.name} has {pipeline.stages} stages, and costs are for {len(costs.forward)}")
        self.pipeline, self.costs, self.network, self.choose, self.delay = pipeline, costs, network, choose, delay
        self.fluid = network.fluid() if network else None
        self.left = [deque(order) for order in pipeline.orders]
        self.bars: list[list[Bar]] = [[] for _ in pipeline.orders]
        self.sent = [0.0] * pipeline.devices
        self.working = [False] * pipeline.devices
        self.there: set[Task] = set()  # results that have arrived where they are needed
        self.to: dict[Task, tuple[int, float]] = {}  # where each result travels, and how many bytes it has
        for task, _, to in pipeline.crossings():
            self.to[task] = (to, costs.bytes_after(task.border, pipeline.size_of(task.microbatch)))
        self.queues: dict[tuple[int, int], deque[Task]] = defaultdict(deque)  # results that wait for their link
        self.passed: dict[tuple[int, int], int] = defaultdict(int)
        self.arrived: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0

    def timeline(self) -> Timeline:
        for device in range(self.pipeline.devices):
            self._begin(device, 0.0)
        while True:
            computed = self.events[0][0] if self.events else math.inf
            moved = self.fluid.next_event() if self.fluid else math.inf
            if min(computed, moved) == math.inf:
                break
            if self.fluid and moved <= computed:
                self.fluid.advance(moved)
            else:
                seconds, _, happen = heapq.heappop(self.events)
                happen(seconds)
        if any(self.left):
            raise PipelineError(f"{self.pipeline.name} does not end in this order of choices")
        return Timeline(tuple(map(tuple, self.bars)), tuple(self.sent))

    def _at(self, seconds: float, happen: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (seconds, self.count, happen))

    def _begin(self, device: int, now: float) -> None:
        """Let a device begin what comes next, if it can."""
        left = self.left[device]
        if self.working[device] or not left:
            return
        if left[0].op is Op.UPDATE:
            self._meet(device, left[0], now)
            return
        index = self.choose(left, self._can_begin)
        if index is None:
            return
        task = left[index]
        del left[index]
        self._work(device, task, now)

    def _can_begin(self, task: Task) -> bool:
        needed = self.pipeline.needed(task)
        return needed is None or needed in self.there

    def _work(self, device: int, task: Task, now: float) -> None:
        size = self.pipeline.size_of(task.microbatch) if task.microbatch >= 0 else 1.0
        end = now + self.costs.seconds(task.op, task.stage, size)
        self.bars[device].append(Bar(task, now, end))
        self.working[device] = True
        self._at(end, partial(self._end, device, task))

    def _meet(self, device: int, task: Task, now: float) -> None:
        """Begin an update when all devices that hold the stage have reached it."""
        event = (task.stage, self.passed[device, task.stage])
        self.arrived[event].add(device)
        holders = self.pipeline.holders[task.stage]
        if len(self.arrived[event]) == len(holders):
            for holder in holders:
                self.passed[holder, task.stage] += 1
                self.left[holder].popleft()
                self._work(holder, task, now)

    def _end(self, device: int, task: Task, now: float) -> None:
        self.working[device] = False
        if task in self.to:
            to, nbytes = self.to[task]
            self.sent[device] += nbytes
            queue = self.queues[device, to]
            queue.append(task)
            if len(queue) == 1:
                self._send(device, to, now)
        else:
            self.there.add(task)
        self._begin(device, now)

    def _send(self, source: int, to: int, now: float) -> None:
        task = self.queues[source, to][0]
        if self.network is None or self.fluid is None:
            self._leave(source, to, 0.0, now)
            return
        message = flows.message(self.to[task][1])
        job = self.network.job(
            "message", None, message, (source, to), lambda end: self._leave(source, to, latency, end)
        )
        latency, job.latency_seconds = job.latency_seconds, 0.0  # messages that follow each other do not wait for it
        self.fluid.add(job, now)

    def _leave(self, source: int, to: int, latency: float, now: float) -> None:
        """Note that the last byte of a message has left, so that the next one follows."""
        queue = self.queues[source, to]
        task = queue.popleft()
        later = latency + (self.delay(task) if self.delay else 0.0)
        self._at(now + later, partial(self._deliver, to, task))
        if queue:
            self._send(source, to, now)

    def _deliver(self, to: int, task: Task, now: float) -> None:
        self.there.add(task)
        self._begin(to, now)
