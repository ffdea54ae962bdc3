"""Orders made by doing, whenever a device is free, the most urgent task that can begin."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from laconic.errors import PipelineError
from laconic.parallel.pipeline.task import Op, Task

Urgency = Callable[[Task], Any]
"""What is smallest for the most urgent task."""


def served(
    devices: int,
    stages: int,
    microbatches: Iterable[int],
    device_of: Callable[[int, int], int],
    urgency: Urgency,
    seconds: Callable[[Task], float] = lambda task: 1.0,
    limit: Callable[[int], float] = lambda device: float("inf"),
    recompute: bool = False,
) -> list[list[Task]]:
    """Return the orders in which devices that always begin the most urgent task work.

    - `microbatches`: their numbers.
    - `device_of`: the device of a stage and microbatch.
    - `seconds`: how long each task takes; messages take no time.
    - `limit`: how many passes forward a device begins, at most, before it ends passes backward.
    - `recompute`: whether stages other than the last compute a microbatch again, once the next stage has begun its
      backward pass, and only one at a time.
    """
    numbers = list(microbatches)
    ready: list[list[tuple[Any, Task]]] = [[] for _ in range(devices)]
    orders: list[list[Task]] = [[] for _ in range(devices)]
    free = [True] * devices
    held = [0] * devices
    again: list[Task | None] = [None] * devices  # what was computed again and has not yet passed backward
    events: list[tuple[float, int, int, Task]] = []
    count = 0
    arrived: set[Task] = set()

    def offer(task: Task) -> None:
        heapq.heappush(ready[device_of(task.stage, task.microbatch)], (urgency(task), task))

    def back(stage: int, microbatch: int) -> None:
        """Offer a backward pass whose gradient has arrived, unless the stage has to compute again first."""
        task = Task(Op.BACKWARD, stage, microbatch)
        arrived.add(task)
        if not recompute or stage == stages - 1 or Task(Op.RECOMPUTE, stage, microbatch) in finished:
            offer(task)

    finished: set[Task] = set()

    def begin(now: float) -> None:
        nonlocal count
        for device in range(devices):
            if not free[device]:
                continue
            passed_over = []
            while ready[device]:
                key, task = heapq.heappop(ready[device])
                full = task.op is Op.FORWARD and held[device] >= limit(device)
                if full or (task.op is Op.RECOMPUTE and again[device] is not None):
                    passed_over.append((key, task))
                    continue
                held[device] += task.op is Op.FORWARD
                if task.op is Op.RECOMPUTE:
                    again[device] = task
                orders[device].append(task)
                free[device] = False
                count += 1
                heapq.heappush(events, (now + seconds(task), count, device, task))
                if recompute and task.op is Op.BACKWARD and task.stage > 0:
                    offer(Task(Op.RECOMPUTE, task.stage - 1, task.microbatch))
                break
            for item in passed_over:
                heapq.heappush(ready[device], item)

    for k in numbers:
        offer(Task(Op.FORWARD, 0, k))
    begin(0.0)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, device, task = heapq.heappop(events)
            free[device] = True
            finished.add(task)
            op, stage, k = task
            if op is Op.FORWARD:
                offer(Task(Op.FORWARD, stage + 1, k)) if stage < stages - 1 else back(stage, k)
            elif op is Op.RECOMPUTE and Task(Op.BACKWARD, stage, k) in arrived:
                offer(Task(Op.BACKWARD, stage, k))
            if op is Op.BACKWARD:
                again[device] = None if again[device] == Task(Op.RECOMPUTE, stage, k) else again[device]
                if stage > 0:
                    back(stage - 1, k)
            held[device] -= op is Op.BACKWARD
        begin(now)
    if any(ready):
        raise PipelineError("the limits of what devices hold leave passes that never begin")
    return orders
