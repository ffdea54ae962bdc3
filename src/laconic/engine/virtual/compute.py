"""How long a virtual worker computes: the same for all, by class, with stragglers, or from a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from laconic.errors import LaconicError

Part = Literal["forward", "backward", "step"]


@dataclass(frozen=True)
class Straggling:
    """In a fraction of the steps, chosen at random per worker and step, computing takes `factor` times as long."""

    probability: float
    factor: float


@dataclass(frozen=True)
class Compute:
    """Seconds of one step's parts on a worker of speed one; `slowness` multiplies them, worker by worker (cycled).

    `backward_by_tensor` says how backward divides over tensors; without it, by their number of elements.
    """

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    step_seconds: float = 0.0
    slowness: tuple[float, ...] = (1.0,)
    straggling: Straggling | None = None
    trace: tuple[tuple[float, ...], ...] = ()  # [step][worker] factors, cycled
    backward_by_tensor: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.forward_seconds, self.backward_seconds, self.step_seconds) < 0 or min(self.slowness) <= 0:
            raise LaconicError(f"computing takes no negative time, and slowness is positive: {self}")

    def factor(self, rank: int, step: int) -> float:
        """How much slower than a worker of speed one this worker is in this step; from a counter, in any order."""
        slow = self.slowness[rank % len(self.slowness)]
        if self.trace:
            row = self.trace[step % len(self.trace)]
            slow *= row[rank % len(row)]
        if self.straggling is not None:
            draw = np.random.default_rng((self.seed, rank, step)).random()
            slow *= self.straggling.factor if draw < self.straggling.probability else 1.0
        return slow

    def seconds(self, part: Part, share: float, name: str | None = None) -> float:
        """A share of a part; for backward, the share of the named tensor."""
        if part == "backward" and name is not None and self._backward_total:
            share = self.backward_by_tensor.get(name, 0.0) / self._backward_total
        whole: float = getattr(self, f"{part}_seconds")
        return whole * share

    @cached_property
    def _backward_total(self) -> float:
        return sum(self.backward_by_tensor.values())
