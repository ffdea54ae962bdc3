"""`auto` in the place of a strategy: a text that asks for one to be chosen, perhaps within a budget for loss."""

from __future__ import annotations

import re
from typing import TypeVar

from laconic.errors import StrategyError

START = "bsp / none / allreduce / auto(false)"
"""The strategy that is trained with until one is chosen."""

T = TypeVar("T")

_AUTO = re.compile(r"\s*auto\s*(?:\(\s*(?:loss_budget\s*=\s*([^)]*?))?\s*\))?\s*")


def budget_of(text: object) -> float | None:
    """The budget for loss, where a text asks for a strategy to be chosen: `auto`, `auto(loss_budget=0.5%)`."""
    found = _AUTO.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    said = found[1] or "0"
    try:
        budget = float(said.rstrip("% ")) / (100 if "%" in said else 1)
    except ValueError:
        raise StrategyError(f"{said!r} is no budget for loss; write auto(loss_budget=0.5%)") from None
    if not 0 <= budget < 1:
        raise StrategyError(f"a budget for loss is a share from 0 to 1, not {said}; write auto(loss_budget=0.5%)")
    return budget


def begins_as(text: T) -> T | str:
    """The strategy that is trained with until one is chosen; any other as it is."""
    return text if budget_of(text) is None else START
