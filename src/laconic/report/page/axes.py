"""Axes of plots: where a value lies between the two ends, and which round values to label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from laconic.report.page.units import Kind, Unit, number, unit_for

_WIDE = 15.0
"""Positive values whose largest is more than this many times the smallest are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, linear or logarithmic, with the unit its values are shown in."""

    low: float
    high: float
    unit: Unit
    label: str
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of `value`: 0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(max(value, self.low * 1e-3) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def heading(self) -> str:
        return self.unit.heading(self.label)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return about `count` round values at most, each with its text."""
        low, high = self.low / self.unit.size, self.high / self.unit.size
        found = _decades(low, high, count) if self.log else _steps(low, high, count)
        return [(value * self.unit.size, _tick(value)) for value in found]


def axis_for(
    values: Iterable[float], kind: Kind, label: str, log: bool = False, zero: bool = False, room: float = 0.04
) -> Axis:
    """Return an axis that spans all finite values, with a margin of `room` of its length beyond either end."""
    found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if log and found:
        low, high = (
            (low / 1.5, high * 1.5) if low == high else (low * (low / high) ** room, high * (high / low) ** room)
        )
    else:
        log = False
        low = min(low, 0.0) if zero else low
        high = max(high, 0.0) if zero else high
        if low == high:
            low, high = (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)) if not zero else (0.0, high or 1.0)
        span = high - low
        low, high = (low if zero and low == 0 else low - room * span), high + room * span
    return Axis(low, high, unit_for([low, high], kind), label, log)


def wide_apart(values: Iterable[float]) -> bool:
    """Whether positive values differ so much that the small ones would be lost on a linear axis."""
    found = [value for value in values if math.isfinite(value)]
    return bool(found) and min(found) > 0 and max(found) / min(found) > _WIDE


def _steps(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [[f * 10.0**p for p in powers for f in factors] for factors in ((1, 2, 5), (1, 3), (1,))]
    inside = [[v for v in values if low <= v <= high] for values in every]
    fitting = next((values for values in inside if len(values) <= count + 1), inside[-1])
    return fitting[:: max(1, math.ceil(len(fitting) / (count + 1)))]


def _tick(value: float) -> str:
    return f"{value:g}" if 1e-4 <= abs(value) < 1e5 or value == 0 else number(value)
