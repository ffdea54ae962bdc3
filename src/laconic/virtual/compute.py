"""How long a virtual worker computes: equally long for all, by worker, with random stragglers, or from a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.values.profile import CodecTimes, Profile
from laconic.values.worker_speeds import Law, Stragglers, WorkerSpeeds

__all__ = ["Compute", "Part", "Stragglers"]

Part = Literal["forward", "backward", "step", "encode", "decode"]


@dataclass(frozen=True)
class Compute:
    """How long virtual workers compute: the seconds of each part of a step, and which workers are slower, and when.

    - `forward_seconds`, `backward_seconds`, `step_seconds`: the parts of a step on a worker of speed one.
    - `slowness`: factors that multiply them, worker by worker, repeated cyclically: with `(1, 1, 1, 5)` every fourth
      worker is slow.
    - `straggling`: random stragglers, a `laconic.Stragglers`.
    - `trace`: factors by step and worker, both repeated cyclically, for workers that become slow and recover.
    - `backward_by_tensor`: the seconds of each tensor's gradient; without them, backward divides over tensors by their
      numbers of elements.
    - `codecs`: measured times of compressors; those that are not listed take no time.
    - `seed`: of stragglers and random times.
    - `batch`: where a sync rule chooses batch sizes, the one that takes these times in forward and backward; another
      one takes proportionally longer or shorter.
    - `law`: `"constant"`, or `"exponential"`: each step takes a random time of that mean.
    """

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    step_seconds: float = 0.0
    slowness: tuple[float, ...] = (1.0,)
    straggling: Stragglers | None = None
    trace: tuple[tuple[float, ...], ...] = ()
    backward_by_tensor: Mapping[str, float] = field(default_factory=dict)
    codecs: tuple[CodecTimes, ...] = ()
    seed: int = 0
    batch: int | None = None
    law: Law = "constant"

    def __post_init__(self) -> None:
        if min(self.forward_seconds, self.backward_seconds, self.step_seconds) < 0:
            raise LaconicError(f"the times of a step's parts must not be negative: {self}")
        self.speeds  # noqa: B018  # raises for values that make no sense

    @classmethod
    def from_profile(cls, profile: Profile) -> Compute:
        """Return the times of a measured profile, for workers of equal speed."""
        return cls().as_measured(profile)

    def as_measured(self, profile: Profile) -> Compute:
        """Return a copy with a profile's times, in which the workers' relative speeds are unchanged."""
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
        """Return how many times slower than a worker of speed one this worker is in this step."""
        return self.speeds.factor(rank, step)

    def factors(self, workers: int, step: int) -> NDArray[np.float64]:
        """Return the slowdown factors of all workers in this step, see `factor`."""
        return self.speeds.factors(workers, step)

    @cached_property
    def speeds(self) -> WorkerSpeeds:
        return WorkerSpeeds(self.slowness, self.straggling, self.trace, self.seed, self.law)

    def share_of_batch(self, part: Part, chosen: int | None) -> float:
        """Return how many times as long a part takes with the batch size that a sync rule has chosen."""
        if chosen is None or self.batch is None or part not in ("forward", "backward"):
            return 1.0
        return chosen / self.batch

    def seconds(self, part: Part, share: float, name: str | None = None) -> float:
        """Return the seconds of a share of a part.

        With the name of a tensor, that is the tensor's share of forward or backward. For `encode` and `decode`, `name`
        is the compressor and `share` its time for a bucket, which `coding_seconds` returns.
        """
        if part == "encode" or part == "decode":
            return share
        if name is not None and self._backward_total:  # forward is divided as backward is
            if name not in self.backward_by_tensor:
                raise LaconicError(
                    f"the profile knows no tensor {name!r}, so it is another model's: `laconic profile` measures it"
                )
            share = self.backward_by_tensor[name] / self._backward_total
        return self._parts[part] * share

    def coding_seconds(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> float:
        """Return the seconds in which these words encode or decode a bucket of tensors of so many elements."""
        codec = self._codecs.get(words)
        return 0.0 if codec is None or not elements else codec.seconds(part, len(elements), sum(elements))

    @cached_property
    def _parts(self) -> Mapping[Part, float]:
        return {"forward": self.forward_seconds, "backward": self.backward_seconds, "step": self.step_seconds}

    @cached_property
    def _codecs(self) -> Mapping[str, CodecTimes]:
        return {codec.words: codec for codec in self.codecs}

    @cached_property
    def _backward_total(self) -> float:
        return sum(self.backward_by_tensor.values())
