"""`LayerTimes`: what each layer of a model takes in an iteration, and the size of its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from laconic.errors import LaconicError


@dataclass(frozen=True)
class LayerTimes:
    """What each tensor's layer takes, in seconds, and how many bytes its gradient has."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    nbytes: tuple[float, ...]
    weights: tuple[float, ...] = ()
    """Of backward, what the gradients of weights take; empty: half of it."""

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
        return self.weights[i] if self.weights else self.backward[i] / 2

    def ready(self, postponed: int = 0) -> list[float]:
        """When each tensor's gradient is there, from the start of backward; so many first ones are computed last."""
        late = [self.weight_seconds(i) for i in range(postponed)]
        chain = [b - (late[i] if i < postponed else 0.0) for i, b in enumerate(self.backward)]
        found = list(accumulate(reversed(chain)))[::-1]
        found[:postponed] = list(accumulate(late, initial=found[0]))[1:]
        return found
