"""Relative errors of predictions, and what they come to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Errors:
    """Of so many cells, without signs."""

    mean: float
    median: float
    largest: float
    cells: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Errors | None:
        """From (predicted, measured); None where there is no pair."""
        found = [abs(predicted / measured - 1) for predicted, measured in pairs]
        if not found:
            return None
        return cls(statistics.fmean(found), statistics.median(found), max(found), len(found))
