"""How many entries clients send, learned while they train: descent by the sign of an estimated slope."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

WINDOW = 20
"""Rounds after which the interval may shrink."""
WIDER = 1.5
"""How far beyond the numbers of a window a smaller interval reaches, as a factor."""


@dataclass(frozen=True)
class OnlineSparsity:
    """A number of entries in an interval, and what has been learned of it.

    - `k`: the number, which need not be whole.
    - `low`, `high`: the interval.
    - `step`: how many times it has been changed since the interval was chosen.
    - `recent`: the numbers since the interval was last considered.
    """

    k: float
    low: float
    high: float
    step: int = 1
    recent: tuple[float, ...] = ()

    @property
    def stride(self) -> float:
        """How far the number moves, and twice how far away it is probed: δ_m = (k_max - k_min)/√(2m)."""
        return (self.high - self.low) / math.sqrt(2 * self.step)

    @property
    def probe(self) -> float:
        """The smaller number of which it is asked what it would have given. It may lie below the interval: whoever has
        come down to its lower end learns whether that was too far."""
        return max(1.0, self.k - self.stride / 2)

    def moved(self, sign: float) -> OnlineSparsity:
        """Return what is known after the sign of the slope has been estimated: more time for more entries is 1."""
        k = min(self.high, max(self.low, self.k - self.stride * sign))
        found = replace(self, k=k, step=self.step + 1, recent=(*self.recent, k))
        return found if len(found.recent) < WINDOW else found._considered()

    def _considered(self) -> OnlineSparsity:
        """Return it with a smaller interval around the recent numbers, where that is small enough to begin anew."""
        low = max(self.low, min(self.recent) / WIDER)
        high = min(self.high, max(self.recent) * WIDER)
        if high - low < (math.sqrt(2) - 1) * (self.high - self.low):
            return OnlineSparsity(self.k, low, high)
        return replace(self, recent=())


def slope_sign(
    tried: float, seconds: float, probed: float, probe_seconds: float, before: float, after: float, probe_after: float
) -> float:
    """Return the sign of the slope of the time for the same fall of the loss, from one round; 0 where it is unknown.

    - `tried`, `seconds`: the number of entries, and what the round took.
    - `probed`, `probe_seconds`: the smaller number, and what it would have taken.
    - `before`, `after`, `probe_after`: the loss before the round, after it, and as it would have been.
    """
    if tried <= probed or before <= after or before <= probe_after:
        return 0.0
    slope = seconds - probe_seconds * (before - after) / (before - probe_after)
    return math.copysign(1.0, slope) if slope else 0.0
