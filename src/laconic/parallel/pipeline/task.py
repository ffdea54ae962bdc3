"""A task of a pipeline: what a device does with a stage and a microbatch."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from laconic.errors import PipelineError


class Op(StrEnum):
    """What a device does. A backward pass is one task, or two: the gradient of the stage's input, which the stage
    before it waits for, and later that of its weights, which only the update waits for."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"
    RECOMPUTE = "R"
    UPDATE = "U"


class Task(NamedTuple):
    """One thing that a device does.

    - `op`: what.
    - `stage`: with which stage.
    - `microbatch`: and with which microbatch; an update is of a stage alone and has none, which is -1.
    """

    op: Op
    stage: int
    microbatch: int = -1

    @property
    def border(self) -> int:
        """The stage in front of the border that the result of a pass crosses."""
        return self.stage if self.op is Op.FORWARD else self.stage - 1

    def __str__(self) -> str:
        return f"{self.op.value}{self.stage}" + (f".{self.microbatch}" if self.microbatch >= 0 else "")

    @classmethod
    def parse(cls, text: str) -> Task:
        """Return the task that was written as F0.3 or, for an update, as U0."""
        found = re.fullmatch(r"([FBIWR])(\d+)\.(\d+)|(U)(\d+)", text)
        if found is None:
            raise PipelineError(f"{text!r} is no task; write one such as F0.3, B1.0 or U2")
        op, stage, microbatch, update, updated = found.groups()
        return cls(Op(update), int(updated)) if update else cls(Op(op), int(stage), int(microbatch))


def forward(stage: int, microbatch: int) -> Task:
    """Return the forward pass of a microbatch through a stage."""
    return Task(Op.FORWARD, stage, microbatch)


def backward(stage: int, microbatch: int) -> Task:
    """Return the whole backward pass of a microbatch through a stage."""
    return Task(Op.BACKWARD, stage, microbatch)


def update(stage: int) -> Task:
    """Return the update of a stage's weights."""
    return Task(Op.UPDATE, stage)
