"""`LayerTimes`: the time that each layer of a model takes in an iteration, and the size of its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from laconic.errors import LaconicError


@dataclass(frozen=True)
class LayerTimes:
    """The forward and backward time of each tensor's layer, in seconds, and the bytes of its gradient."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    nbytes: tuple[float, ...]
    weights: tuple[float, ...] = ()
    """The part of each backward time that computes the gradients of weights; empty means half of it."""

    def __post_init__(self) -> None:
        lengths = {len(self.forward), len(self.backward), len(self.nbytes), len(self.weights) or len(self.forward)}
        if len(lengths) != 1 or not self.forward:
            raise LaconicError(f"layers need as many forward and backward times as sizes, not {sorted(lengths)}")

    @property
    def count(self) -> int:
        return len(self.forward)

    @property
    def compute_seconds(self) -> float:
        return sum(self.forward) + sum(self.backward)

    def weight_seconds(self, i: int) -> float:
        """Return the part of a layer's backward time that computes the gradients of its weights."""
        return self.weights[i] if self.weights else self.backward[i] / 2

    def ready(self, postponed: int = 0) -> list[float]:
        """Return when each tensor's gradient is ready, in seconds from the start of backward. The weight gradients of
        the first `postponed` tensors are computed last."""
        deferred = [self.weight_seconds(i) for i in range(postponed)]
        chain = [b - (deferred[i] if i < postponed else 0.0) for i, b in enumerate(self.backward)]
        ready = list(accumulate(reversed(chain)))[::-1]
        ready[:postponed] = list(accumulate(deferred, initial=ready[0]))[1:]
        return ready
