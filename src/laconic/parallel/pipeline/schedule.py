"""The interface of a schedule: from numbers of devices and microbatches to a pipeline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from laconic.errors import PipelineError, StrategyError
from laconic.knobs import Technique
from laconic.language.grammar import parse_schedule
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.task import Op, Task, update


class PipelineSchedule(Technique):
    """Orders the tasks of devices that hold a model's stages. Its knobs are its fields."""

    axis: ClassVar[str] = "parallel"

    def pipeline(self, devices: int, microbatches: int) -> Pipeline:
        """Return the pipeline for so many devices and microbatches."""
        if devices < 1 or microbatches < 1:
            raise PipelineError(f"a pipeline has devices and microbatches, at least one, not {devices}, {microbatches}")
        return self.make(devices, microbatches)

    def stages(self, devices: int) -> int:
        """Return into how many stages the model is cut for so many devices."""
        return devices

    @abstractmethod
    def make(self, devices: int, microbatches: int) -> Pipeline:
        """Return the pipeline; both numbers are at least one."""


def named(text: str) -> PipelineSchedule:
    """Return the schedule that a word with arguments describes, such as `interleaved_1f1b(chunks=2)`."""
    found = parse_schedule(text)
    if not isinstance(found, PipelineSchedule):
        raise StrategyError(f"{found.name} is no schedule of a pipeline; `laconic pipeline list` shows them")
    return found


def with_flush(orders: Iterable[Sequence[Task]]) -> tuple[tuple[Task, ...], ...]:
    """Return orders that end with one update of each stage that a device holds: a synchronous step."""
    return tuple((*order, *(update(s) for s in sorted({task.stage for task in order}))) for order in orders)


def recomputing(orders: Iterable[Sequence[Task]], last: int) -> tuple[tuple[Task, ...], ...]:
    """Return orders in which each forward pass is repeated before its backward pass, except in the last stage where one
    follows the other at once."""
    return tuple(
        tuple(
            each
            for index, task in enumerate(order)
            for each in (
                (Task(Op.RECOMPUTE, *task[1:]), task)
                if task.op in (Op.BACKWARD, Op.INPUT)
                and not (task.stage == last and index and order[index - 1] == Task(Op.FORWARD, *task[1:]))
                else (task,)
            )
        )
        for order in orders
    )
