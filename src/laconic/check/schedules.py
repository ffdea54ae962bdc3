"""What every schedule must keep: a plan for any tensors, in any order of arrival."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from laconic.check.finding import Finding, look, smallest
from laconic.schedule.base import Schedule
from laconic.values.tensor_spec import TensorSpec

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Model:
    """Tensors, and the order in which backward computes their gradients."""

    tensors: tuple[TensorSpec, ...]
    arrival: tuple[int, ...]

    def __str__(self) -> str:
        shapes = ", ".join(str(list(spec.shape)) for spec in self.tensors[:5])
        more = f" and {len(self.tensors) - 5} more" if len(self.tensors) > 5 else ""
        return f"tensors {shapes}{more}, arriving in the order {list(self.arrival[:8])}"


def _models() -> Iterator[Model]:
    draw = random.Random(0)
    for count in (1, 2, 3, 5, 9, 20):
        for _ in range(6):
            shapes = [tuple(draw.randint(1, 40) for _ in range(draw.randint(0, 3))) for _ in range(count)]
            specs = tuple(TensorSpec(f"x{i}", shape, draw.choice(DTYPES)) for i, shape in enumerate(shapes))
            yield Model(specs, tuple(draw.sample(range(count), count)))


def covers_once(made: Schedule) -> str | None:
    """A plan carries every element of every tensor exactly once, whatever the tensors and their order of arrival."""

    def judge(model: Model) -> str | None:
        plan = made.plan(model.tensors, model.arrival)  # a plan that sends something twice or never cannot exist
        if plan.tensors != model.tensors:
            return "the plan is for other tensors"
        planned, whole = sum(plan.message_bytes), sum(spec.nbytes for spec in model.tensors)
        return None if planned == whole else f"its messages have {planned} bytes, the tensors {whole}"

    return smallest(_models(), judge)


def plans_again(made: Schedule) -> str | None:
    """The same tensors get the same plan on every worker."""

    def judge(model: Model) -> str | None:
        plans = [made.plan(model.tensors, model.arrival) for _ in range(2)]
        return None if plans[0] == plans[1] else "two plans for the same tensors differ"

    return smallest(_models(), judge)


def findings(made: Schedule) -> list[Finding]:
    """Return what every check says of a schedule."""
    return look((covers_once, plans_again), made)
