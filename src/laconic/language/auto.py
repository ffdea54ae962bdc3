"""`auto` in the place of a strategy: a text that asks for one to be chosen, perhaps within a budget for the loss."""

from __future__ import annotations

import re
from typing import TypeVar

from laconic.errors import StrategyError

START = "bsp / none / allreduce / auto(false)"
"""The strategy to train with until one is chosen."""

T = TypeVar("T")

_AUTO = re.compile(r"\s*auto\s*(?:\(\s*(?:loss_budget\s*=\s*([^)]*?))?\s*\))?\s*")


def budget_of(text: object) -> float | None:
    """Return the budget for the loss if the text asks for a strategy to be chosen, as `auto` or
    `auto(loss_budget=0.5%)`; else None."""
    found = _AUTO.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    written = found[1] or "0"
    try:
        budget = float(written.rstrip("% ")) / (100 if "%" in written else 1)
    except ValueError:
        raise StrategyError(f"{written!r} is no budget for loss; write auto(loss_budget=0.5%)") from None
    if not 0 <= budget < 1:
        raise StrategyError(f"a budget for loss is a share from 0 to 1, not {written}; write auto(loss_budget=0.5%)")
    return budget


def begins_as(text: T) -> T | str:
    """Return the strategy to train with until one is chosen; any other strategy is returned as it is."""
    return text if budget_of(text) is None else START
