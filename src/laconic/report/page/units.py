"""Numbers as text: one unit for a column or an axis, chosen by the values in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["seconds", "bytes", "plain"]
MISSING = "–"
_NOTHING = 1e-4  # of a unit: a tenth of a nanosecond where microseconds are shown, which no clock tells from zero

_LADDERS: dict[Kind, tuple[tuple[float, str], ...]] = {
    "seconds": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")),
    "bytes": ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
    "plain": ((1.0, ""),),
}


@dataclass(frozen=True)
class Unit:
    """A unit: its name, and its size in seconds, bytes or ones."""

    size: float
    name: str

    def of(self, value: float | None) -> str:
        """Return the number alone, for a column whose heading names the unit; next to nothing in that unit is zero."""
        if value is None or math.isnan(value):
            return MISSING
        return "0" if self.name and abs(value) < _NOTHING * self.size else number(value / self.size)

    def with_unit(self, value: float | None) -> str:
        """Return the number with its unit."""
        return self.of(value) if value is None or not self.name else f"{self.of(value)} {self.name}"

    def heading(self, text: str) -> str:
        return f"{text} ({self.name})" if self.name else text


def unit_for(values: Iterable[float | None], kind: Kind) -> Unit:
    """Return the largest unit in which the largest value is at least one (for minutes and hours: two)."""
    most = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    ladder = _LADDERS[kind]
    fitting = [step for step in ladder if most >= (2 * step[0] if step[0] > 1 and kind == "seconds" else step[0])]
    return Unit(*(fitting[-1] if fitting else ladder[0]))


def with_unit(value: float | None, kind: Kind) -> str:
    """Return a single number with the unit that suits it."""
    return MISSING if value is None else unit_for([value], kind).with_unit(value)


def number(value: float) -> str:
    """Return a number with three to four digits and separators between thousands."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, MISSING)
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(digits, 0)}f}" if digits <= 6 else f"{value:.3g}"


def times(value: float | None) -> str:
    """Return a ratio as text, such as `1.30×`."""
    return MISSING if value is None or math.isnan(value) else f"{number(value)}×"


def spread(unit: Unit, middle: float | None, low: float | None, high: float | None) -> str:
    """Return a text such as `12.3 [11.9–12.8]`, or the middle alone where nothing spreads."""
    if middle is None or low is None or high is None or math.isnan(low) or math.isnan(high):
        return unit.of(middle)
    if unit.of(low) == unit.of(middle) == unit.of(high):
        return unit.of(middle)
    return f"{unit.of(middle)} [{unit.of(low)}–{unit.of(high)}]"
