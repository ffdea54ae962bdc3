"""The verifier of pipelines: each pass once and on one device, none before what it needs, no order that never ends."""

from __future__ import annotations

from collections import defaultdict

from laconic.errors import PipelineError
from laconic.parallel.pipeline.orders import Orders
from laconic.parallel.pipeline.task import Op, Task


def verify(pipeline: Orders) -> None:
    """Raise an error, which says what is wrong, for orders that are no training step."""
    _each_pass_once(pipeline)
    _nothing_left_without_update(pipeline)
    _has_an_end(pipeline)


def _each_pass_once(pipeline: Orders) -> None:
    places: dict[Task, tuple[int, int]] = {}
    for device, order in enumerate(pipeline.orders):
        for index, task in enumerate(order):
            if task.op is not Op.UPDATE and task in places:
                raise PipelineError(f"{pipeline.name} has {task} twice")
            places[task] = (device, index)
    for stage in range(pipeline.stages):
        for microbatch in range(pipeline.microbatches):
            of = {op: places.get(Task(op, stage, microbatch)) for op in Op if op is not Op.UPDATE}
            whole, parts = of[Op.BACKWARD], (of[Op.INPUT], of[Op.WEIGHT])
            if of[Op.FORWARD] is None or (whole is None) != (None not in parts) or (whole and any(parts)):
                raise PipelineError(
                    f"{pipeline.name} must have, of stage {stage} and microbatch {microbatch}, the forward pass once "
                    "and the backward pass once, as one task or as two"
                )
            steps = [of[op] for op in (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD, Op.INPUT, Op.WEIGHT) if of[op]]
            if len({place[0] for place in steps if place}) > 1:
                raise PipelineError(
                    f"{pipeline.name} has passes of stage {stage} and microbatch {microbatch} on several devices"
                )
            if steps != sorted(steps):  # type: ignore[type-var]  # none of them is None
                raise PipelineError(
                    f"{pipeline.name} must have the passes of stage {stage} and microbatch {microbatch} in the order: "
                    "forward, recomputation, gradient of the input, gradient of the weights"
                )


def _nothing_left_without_update(pipeline: Orders) -> None:
    counts: dict[int, dict[int, int]] = defaultdict(dict)
    for device, order in enumerate(pipeline.orders):
        waiting: set[int] = set()
        for task in order:
            if task.op in (Op.BACKWARD, Op.WEIGHT):
                waiting.add(task.stage)
            elif task.op is Op.UPDATE:
                waiting.discard(task.stage)
                counts[task.stage][device] = counts[task.stage].get(device, 0) + 1
        if waiting:
            raise PipelineError(f"{pipeline.name} never applies gradients of stage {min(waiting)} on device {device}")
    for stage, holders in enumerate(pipeline.holders):
        if set(counts[stage]) != set(holders) or len(set(counts[stage].values())) > 1:
            raise PipelineError(f"{pipeline.name} must update stage {stage} equally often on all devices that hold it")
    if pipeline.stashes:
        return
    for order in pipeline.orders:
        used: dict[tuple[int, int], int] = {}
        updates: dict[int, int] = defaultdict(int)
        for task in order:
            updates[task.stage] += task.op is Op.UPDATE
            if task.op is Op.FORWARD:
                used[task[1:]] = updates[task.stage]
            elif task.op is not Op.UPDATE and used[task[1:]] != updates[task.stage]:
                raise PipelineError(
                    f"{pipeline.name} updates stage {task.stage} between the passes of microbatch {task.microbatch}, "
                    "so that it must stash weights"
                )


def _has_an_end(pipeline: Orders) -> None:
    stuck = walk(pipeline)
    if stuck:
        waits = ", ".join(f"device {device} waits at {task}" for device, task in stuck[:4])
        raise PipelineError(f"{pipeline.name} never ends: {waits}")


def walk(pipeline: Orders) -> list[tuple[int, Task]]:
    """Go through the orders, each task once what it needs is done, and return where devices are stuck."""
    done: set[Task] = set()
    place = [0] * pipeline.devices
    passed: dict[tuple[int, int], int] = defaultdict(int)  # by device and stage: its updates so far
    arrived: dict[tuple[int, int], set[int]] = defaultdict(set)  # by stage and number of an update
    waiting: dict[object, list[int]] = defaultdict(list)
    able = list(range(pipeline.devices))
    while able:
        device = able.pop()
        order = pipeline.orders[device]
        while place[device] < len(order):
            task = order[place[device]]
            if task.op is Op.UPDATE:
                event = (task.stage, passed[device, task.stage])
                arrived[event].add(device)
                if len(arrived[event]) < len(pipeline.holders[task.stage]):
                    waiting[event].append(device)
                    break
                passed[device, task.stage] += 1
                able += waiting.pop(event, [])
            else:
                needed = pipeline.needed(task)
                if needed is not None and needed not in done:
                    waiting[needed].append(device)
                    break
                done.add(task)
                able += waiting.pop(task, [])
            place[device] += 1
    return [(d, order[i]) for d, (order, i) in enumerate(zip(pipeline.orders, place, strict=True)) if i < len(order)]
