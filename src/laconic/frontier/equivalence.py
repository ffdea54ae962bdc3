"""DDP-equivalent tokens: on which share of the samples DDP would have reached the loss that a method reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, nan
from statistics import fmean

from laconic.experiments.statistics import Spread
from laconic.planner.runs import Run

LEAST, MOST = 0.01, 2.0
"""The shares between which a loss is converted at all; outside the shares that were measured the curve's end is
continued."""
FEWEST = 0.5
"""The least share of DDP's tokens for which a method still counts as reaching DDP's loss. What its remaining tokens
would gain was measured for DDP alone; the fewer DDP needs, the more would rest on that."""


@dataclass(frozen=True)
class Equivalence:
    """DDP's loss by share of the samples, as ratios to its loss on all of them; shares rise to 1, ratios fall to 1."""

    points: tuple[tuple[float, float], ...]

    def share(self, ratio: float) -> float:
        """Return the share of the samples at which DDP's loss over its final one is this ratio.

        Between measured shares it is interpolated in the logarithm of the share, beyond them along the nearest two.
        """
        if not isfinite(ratio):
            return LEAST
        pairs = list(zip(self.points, self.points[1:], strict=False))
        (share, loss), (later, less) = next((pair for pair in pairs if ratio >= pair[1][1]), pairs[-1])
        place = (ratio - loss) / (less - loss)
        at = log(share) + place * (log(later) - log(share))
        return min(MOST, max(LEAST, exp(min(at, 1.0))))

    def spread(self, ratio: Spread) -> Spread:
        """Return the share with its interval, whose lower end belongs to the largest loss. Where DDP was never trained
        on so few samples that its loss was as large, that end is not known (NaN)."""
        least = _or_nan(self, ratio.high) if self._measured(ratio.high) else nan
        return Spread(self.share(ratio.middle), least, _or_nan(self, ratio.low))

    def reached(self, ratio: float) -> bool:
        """Return whether DDP ends no lower than this ratio on half of the samples, and on the fewest that were run."""
        return self._measured(ratio) and self.share(ratio) >= FEWEST * (1 - 1e-9)

    def within(self, ratio: float) -> bool:
        """Return whether the ratio lies between measured ones."""
        return self.points[-1][1] <= ratio and self._measured(ratio)

    def _measured(self, ratio: float) -> bool:
        """Return whether DDP on the least share of the samples that was run ends no lower than this ratio."""
        return ratio <= self.points[0][1]


def equivalence(fewer: Iterable[Run], full: Sequence[Run], lr: float) -> Equivalence | None:
    """Return the curve of DDP's reported runs and of its runs on fewer samples; None where there are none of these.

    Each point is a ratio of means over the seeds that both have. A share whose loss is no larger than that of a larger
    share would make the curve ambiguous, and is left out.
    """
    whole = {run.seed: run.final for run in full}
    by_share: dict[float, dict[int, float]] = {}
    fewer = list(fewer)
    for run in [run for run in fewer if run.lr == lr] or fewer:
        by_share.setdefault(run.share, {})[run.seed] = run.final
    points = [(1.0, 1.0)]
    for share, losses in sorted(by_share.items(), reverse=True):
        seeds = losses.keys() & whole.keys() or None
        ours = fmean(losses[s] for s in seeds) if seeds else fmean(losses.values())
        ratio = ours / (fmean(whole[s] for s in seeds) if seeds else fmean(whole.values()))
        if share < points[-1][0] and points[-1][1] < ratio < float("inf"):
            points.append((share, ratio))
    return Equivalence(tuple(reversed(points))) if len(points) > 1 else None


def _or_nan(curve: Equivalence, ratio: float) -> float:
    return curve.share(ratio) if ratio == ratio else nan
