"""The period of a row: the number of steps over which its times and bytes must be averaged to mean anything."""

from __future__ import annotations

import math

from laconic.experiments.rivals.base import Rival
from laconic.experiments.rivals.text import read
from laconic.language.auto import begins_as
from laconic.strategy import Sentence, Strategy


def period_of(text: str) -> int:
    """Return the number of steps after which what a row sends repeats, over all its phases, tiers and rules."""
    method = read(begins_as(text))
    return method.period if isinstance(method, Rival) else _repeats_after(method)


def _repeats_after(strategy: Strategy) -> int:
    if isinstance(strategy, Sentence):
        period: int = strategy.sync.make().period
        return period
    return math.lcm(*map(_repeats_after, strategy.parts_within))
