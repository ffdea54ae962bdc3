"""Varuna's schedule: made by rules, with recomputation that meets the gradient on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.parallel.pipeline.greedy import served
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.task import Op, Task
from laconic.registry import technique


@technique("varuna", paper="Athlur et al., EuroSys 2022")
@dataclass(frozen=True)
class Varuna(PipelineSchedule):
    """A device begins the first task that can begin of: a backward pass, a recomputation, a forward pass. A stage
    computes a microbatch again once the next stage has begun its backward pass, so that this overlaps the gradient's
    transfer; only one such result waits at any time, and the last stage computes nothing again."""

    def make(self, devices: int, microbatches: int) -> Pipeline:
        orders = served(
            devices,
            devices,
            range(microbatches),
            lambda stage, k: stage,
            lambda task: (_CLASSES[task.op], task.microbatch),
            seconds=lambda task: 2.0 if task.op is Op.BACKWARD else 1.0,
            recompute=True,
        )
        return Pipeline("varuna", with_flush(orders))


_CLASSES = {Op.BACKWARD: 0, Op.RECOMPUTE: 1, Op.FORWARD: 2}


def opportunistic(left: Sequence[Task], can_begin: Callable[[Task], bool]) -> int | None:
    """Choose what comes next on a device that may depart from its order: while the gradient of the listed recomputation
    or backward pass has not arrived, the next forward pass comes in its place, if it can begin."""
    first = left[0]
    if first.op is Op.FORWARD:
        return 0 if can_begin(first) else None
    if can_begin(Task(Op.BACKWARD, *first[1:])):
        return 0
    ahead = next((index for index, task in enumerate(left) if task.op is Op.FORWARD), None)
    if ahead is not None and can_begin(left[ahead]):
        return ahead
    return 0 if can_begin(first) else None
