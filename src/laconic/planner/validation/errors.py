"""Relative errors of predictions, and their summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Errors:
    """The mean, median and largest absolute relative error over a number of cells."""

    mean: float
    median: float
    largest: float
    cells: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Errors | None:
        """Return the errors of (predicted, measured) pairs, or None where there is no pair."""
        found = [abs(predicted / measured - 1) for predicted, measured in pairs]
        if not found:
            return None
        return cls(statistics.fmean(found), statistics.median(found), max(found), len(found))
