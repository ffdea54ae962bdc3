"""A method's gap at model sizes that were not measured: between rungs, and beyond the largest along their trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, log10, nan, sqrt
from statistics import fmean
from typing import Literal

from laconic.experiments.statistics import Spread

Basis = Literal["measured", "trend", "last rung"]
_BEYOND = 1.1  # times the largest model measured, up to which its gap counts as measured


@dataclass(frozen=True)
class Rung:
    """The gap that was measured at one size; `half` is half of its interval's width, NaN where it is not known."""

    parameters: int
    gap: float
    half: float

    @classmethod
    def of(cls, parameters: int, gap: Spread, otherwise: float) -> Rung:
        """Return a rung from a gap; a single seed has no interval, and is given half a width from elsewhere."""
        half = (gap.high - gap.low) / 2
        return cls(parameters, gap.middle, half if isfinite(half) else otherwise)


@dataclass(frozen=True)
class Trend:
    """A method's gap over the logarithm of the model's size; rungs are in the order of their sizes."""

    rungs: tuple[Rung, ...]

    @property
    def slope(self) -> float | None:
        """The change of the gap for each tenfold size, by least squares; None where one size was measured."""
        return None if len(self.rungs) < 2 else self._change([rung.gap for rung in self.rungs])

    @property
    def slope_half(self) -> float:
        """Half the width of the slope's interval."""
        return self._change_half([rung.half for rung in self.rungs])

    @property
    def shrinking(self) -> tuple[float, float]:
        """The change of the gap's logarithm for each tenfold size, and half the width of its interval; zero where a
        gap that has none was measured, and where the logarithms grow."""
        if any(rung.gap <= 0 for rung in self.rungs):
            return 0.0, 0.0
        change = self._change([log(rung.gap) for rung in self.rungs])
        return min(0.0, change), self._change_half([rung.half / rung.gap for rung in self.rungs])

    @property
    def measured_up_to(self) -> int:
        return self.rungs[-1].parameters

    def basis(self, parameters: float) -> Basis:
        """Return on what the gap at a size rests."""
        if parameters <= _BEYOND * self.measured_up_to:
            return "measured"
        return "trend" if len(self.rungs) > 1 else "last rung"

    def at(self, parameters: float) -> Spread:
        """Return the gap at a size: interpolated between rungs, and the nearest rung's outside of them.

        Beyond the largest rung a gap that grows does so by as much for each tenfold size, and one that shrinks does so
        by the same share, so that no trend is credited with reaching DDP's loss. The ends of the interval are those of
        the largest rung: the upper one grows as fast as the slope's interval allows and never shrinks, the lower one
        shrinks as fast as that of the share allows and never grows.
        """
        last = self.rungs[-1]
        if parameters <= last.parameters or self.slope is None:
            return self._between(parameters)
        tenfolds = log10(parameters / last.parameters)
        low, high = last.gap - last.half, last.gap + last.half
        by_share, half = self.shrinking
        middle = last.gap + self.slope * tenfolds if self.slope >= 0 else _shrunk(last.gap, by_share, tenfolds)
        return Spread(
            middle,
            min(middle, _shrunk(low, by_share - half, tenfolds)) if half == half else nan,
            high + max(0.0, self.slope + self.slope_half) * tenfolds,
        )

    def _between(self, parameters: float) -> Spread:
        """Return the gap at a size that is not beyond the largest, interpolated in the logarithm of the size."""
        below = [rung for rung in self.rungs if rung.parameters <= parameters] or [self.rungs[0]]
        above = [rung for rung in self.rungs if rung.parameters > parameters] or [self.rungs[-1]]
        small, large = below[-1], above[0]
        share = 0.0
        if small.parameters < parameters < large.parameters:
            share = log(parameters / small.parameters) / log(large.parameters / small.parameters)
        middle = (1 - share) * small.gap + share * large.gap
        half = small.half if share == 0 else _norm([(1 - share) * small.half, share * large.half])
        return Spread(middle, middle - half, middle + half)

    def _change(self, values: Sequence[float]) -> float:
        """Return by how much the rungs' values change for each tenfold size, by least squares."""
        return log(10) * sum(weight * value for weight, value in zip(self._weights, values, strict=True))

    def _change_half(self, halves: Sequence[float]) -> float:
        return log(10) * _norm([weight * half for weight, half in zip(self._weights, halves, strict=True)])

    @property
    def _weights(self) -> list[float]:
        """The rungs' weights in the slope of least squares over the logarithm of the size."""
        places = [log(rung.parameters) for rung in self.rungs]
        mean = fmean(places)
        spread = sum((place - mean) ** 2 for place in places)
        return [(place - mean) / spread for place in places]


def _norm(parts: Sequence[float]) -> float:
    return nan if any(part != part for part in parts) else sqrt(sum(part * part for part in parts))


def _shrunk(gap: float, by_share: float, tenfolds: float) -> float:
    """Return a gap so many tenfold sizes further, which keeps its sign; one below zero stays."""
    return gap * exp(by_share * tenfolds) if gap > 0 else gap
