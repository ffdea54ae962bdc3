"""How long a virtual worker computes: the same for all, by class, with stragglers, or from a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.profile.values import CodecTimes, Profile

Part = Literal["forward", "backward", "step", "encode", "decode"]


@dataclass(frozen=True)
class Straggling:
    """In a fraction of the steps, chosen at random per worker and step, computing takes `factor` times as long."""

    probability: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1 or not 0 < self.factor < math.inf:
            raise LaconicError(f"a straggler has a probability of 0 to 1 and a positive factor: {self}")


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
    codecs: tuple[CodecTimes, ...] = ()  # of words; those that are not here take no time
    seed: int = 0

    def __post_init__(self) -> None:
        factors = [*self.slowness, *(factor for row in self.trace for factor in row)]
        if min(self.forward_seconds, self.backward_seconds, self.step_seconds) < 0 or min(factors, default=0) <= 0:
            raise LaconicError(f"computing takes no negative time, and slowness is positive: {self}")
        if not self.slowness or not all(self.trace):
            raise LaconicError("slowness and each row of a trace hold at least one factor, for a worker")

    @classmethod
    def from_profile(cls, profile: Profile) -> Compute:
        """As it was measured."""
        return cls().as_measured(profile)

    def as_measured(self, profile: Profile) -> Compute:
        """With a profile's times; who is slower than whom stays."""
        model = profile.model
        return replace(
            self,
            forward_seconds=model.forward.median,
            backward_seconds=model.backward.median,
            step_seconds=model.step.median,
            backward_by_tensor={tensor.name: tensor.backward_seconds for tensor in model.tensors},
            codecs=profile.codecs,
        )

    def factor(self, rank: int, step: int) -> float:
        """How much slower than a worker of speed one this worker is in this step; the same in any order of asking."""
        slow = self.slowness[rank % len(self.slowness)]
        if self.trace:
            row = self.trace[step % len(self.trace)]
            slow *= row[rank % len(row)]
        if self.straggling is not None:
            draw = _draws(self.seed, step, rank // _DRAWS)[rank % _DRAWS]
            slow *= self.straggling.factor if draw < self.straggling.probability else 1.0
        return slow

    def factors(self, workers: int, step: int) -> NDArray[np.float64]:
        """Those of all workers at once."""
        slow = np.resize(np.array(self.slowness), workers)
        if self.trace:
            slow = slow * np.resize(np.array(self.trace[step % len(self.trace)]), workers)
        if self.straggling is not None:
            blocks = [_draws(self.seed, step, block) for block in range(-(-workers // _DRAWS))]
            straggles = np.concatenate(blocks)[:workers] < self.straggling.probability
            slow = np.where(straggles, slow * self.straggling.factor, slow)
        return slow

    def seconds(self, part: Part, share: float, name: str | None = None) -> float:
        """A share of a part; for backward, of the named tensor; for words, so many elements of one tensor."""
        if part == "encode" or part == "decode":
            codec = self._codecs.get(name or "")
            return 0.0 if codec is None else codec.seconds(part, 1, int(share))
        if part == "backward" and name is not None and self._backward_total:
            if name not in self.backward_by_tensor:
                raise LaconicError(
                    f"the profile knows no tensor {name!r}, so it is another model's: `laconic profile` measures it"
                )
            share = self.backward_by_tensor[name] / self._backward_total
        whole: float = getattr(self, f"{part}_seconds")
        return whole * share

    @cached_property
    def _codecs(self) -> Mapping[str, CodecTimes]:
        return {codec.words: codec for codec in self.codecs}

    @cached_property
    def _backward_total(self) -> float:
        return sum(self.backward_by_tensor.values())


_DRAWS = 1024


@lru_cache(maxsize=64)
def _draws(seed: int, step: int, block: int) -> NDArray[np.float64]:
    """A number for each worker of a block of ranks, in one step."""
    return np.random.default_rng((seed, step, block)).random(_DRAWS)
