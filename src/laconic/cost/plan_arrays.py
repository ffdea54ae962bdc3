"""A communication plan as arrays, for pricing many strategies on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.cost.collectives import Vector
from laconic.values.comm_plan import CommPlan, urgencies


@dataclass(frozen=True, eq=False)
class PlanArrays:
    """A plan's messages in order: `messages`, `members` and `parts` are parallel arrays of (message, tensor, share of
    the tensor's bytes)."""

    count: int
    messages: NDArray[np.int64]
    members: NDArray[np.int64]
    parts: Vector
    awaited: tuple[tuple[int, ...], ...]  # tensors whose gradients must exist before a message is sent
    gates: tuple[tuple[int, tuple[int, ...]], ...] = ()
    halves: bool = False
    second_order: tuple[int, ...] | None = None
    postponed: int = 0

    @classmethod
    def of_one(cls, tensors: int) -> PlanArrays:
        """Return a plan that sends all tensors in one message."""
        everything = tuple(range(tensors))
        return cls(1, np.zeros(tensors, dtype=int), np.arange(tensors), np.ones(tensors), (everything,))

    @classmethod
    def of(cls, plan: CommPlan, arrival: Sequence[int]) -> PlanArrays:
        """Return a plan as arrays, with tensors numbered as in the plan: in the order of the forward pass."""
        rows = [
            (k, i, (stop - start) / max(1, plan.tensors[i].numel))
            for k, message in enumerate(plan.messages)
            for i, start, stop in plan.carried(message)
        ]
        messages, members, parts = (np.array(column) for column in zip(*rows, strict=True))
        carried: list[list[int]] = [[] for _ in plan.messages]
        for k, i, _ in rows:
            carried[k].append(i)
        awaited = tuple((*of, *m.after) for of, m in zip(carried, plan.messages, strict=True))
        second = None
        if plan.halves:
            soon = urgencies(arrival)
            second = tuple(sorted(range(len(carried)), key=lambda k: min(soon[i] for i in carried[k])))
        gates = _gates(carried, arrival) if plan.gated else ()
        return cls(
            len(plan.messages), messages, members, parts, awaited, gates, plan.halves, second, len(plan.postponed)
        )

    def summed(self, by_tensor: Vector) -> Vector:
        """Return the sums of a quantity by tensor over the tensors of each message."""
        sums: Vector = np.bincount(self.messages, by_tensor[self.members] * self.parts, self.count).astype(float)
        return sums


def _gates(carried: Sequence[Sequence[int]], arrival: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return, in order, the layers at which the next forward pass first waits for a message, with these messages."""
    place = urgencies(arrival)
    first: dict[int, list[int]] = {}
    for k, tensors in enumerate(carried):
        first.setdefault(min(place[i] for i in tensors), []).append(k)
    return tuple((layer, tuple(first[layer])) for layer in sorted(first))
