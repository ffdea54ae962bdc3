"""Two methods side by side: whether one's loss is smaller than the other's, over the seeds that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from laconic.experiments.statistics import Spread, paired
from laconic.experiments.student import student_gap

Verdict = Literal["holds", "refuted", "undecided", "no data"]
FEWER_BYTES = 50.0


@dataclass(frozen=True)
class Pair:
    """Two sets of losses by seed, of which the first should be the smaller; `margin` is how much larger it may be."""

    where: str
    better: str
    worse: str
    better_losses: Mapping[int, float]
    worse_losses: Mapping[int, float]
    margin: float = 0.0
    fewer_bytes: float | None = None  # of the better one, where the ordering is about bytes too

    @property
    def difference(self) -> Spread | None:
        """The better one's loss over the worse one's, less 1, with its interval; None where no seed has both."""
        return student_gap(self.better_losses, self.worse_losses)

    @property
    def verdict(self) -> Verdict:
        pairs = paired(self.better_losses, self.worse_losses)
        if not pairs:
            return "no data"
        if self.fewer_bytes is not None and self.fewer_bytes < FEWER_BYTES:
            return "refuted"
        if not all(isfinite(a) and isfinite(b) for a, b in pairs):
            return _by_divergence(pairs)
        found = self.difference
        if found is None or found.low != found.low:
            return "undecided"
        if found.high < 0 or (self.margin and found.high <= self.margin):
            return "holds"
        return "refuted" if found.low > self.margin else "undecided"


def _by_divergence(pairs: Sequence[tuple[float, float]]) -> Verdict:
    """Judge pairs of which some diverged: by the direction, where it is the same in all of at least two."""
    if len(pairs) > 1 and all(a < b for a, b in pairs):
        return "holds"
    return "refuted" if len(pairs) > 1 and all(b < a for a, b in pairs) else "undecided"
