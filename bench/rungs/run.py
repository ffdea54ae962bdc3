"""One run of a table: what it is, and the row that it leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from laconic.strategy import Strategy

IDENTITY = ("task", "rung", "workers", "optimizer", "sentence", "lr", "seed", "steps", "purpose", "skewed")
"""The fields that tell a run from all others."""


@dataclass(frozen=True)
class Run:
    """A training of one method: with this rate and seed, over so many steps. `purpose` is "rate" where it chooses a
    rate, "report" where it is shown, and "fewer" where it shows what fewer tokens give."""

    task: str
    rung: str
    workers: int
    optimizer: str
    method: str
    lr: float
    seed: int
    steps: int
    full_steps: int
    purpose: str
    skewed: bool = False

    @property
    def sentence(self) -> str:
        """The method as it is at this rung's full length, by which rows are compared."""
        return str(strategy_at(self.method, self.full_steps))

    @property
    def trained(self) -> str:
        """The method as it is at this run's length."""
        return at_length(self.method, self.steps)

    @property
    def identity(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in IDENTITY)


def at_length(method: str, steps: int) -> str:
    """Return a method's sentence, in which every {15%} is that share of so many steps."""
    return re.sub(r"\{(\d+)%\}", lambda found: str(round(steps * int(found[1]) / 100)), method)


@cache
def strategy_at(method: str, steps: int) -> Strategy:
    """Return a method's strategy in a run of so many steps."""
    return Strategy.parse(at_length(method, steps))


def identity_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def share_of_rate(step: int, steps: int, warm_up: float = 0.05, least: float = 0.1) -> float:
    """Return the share of the learning rate in a step: it rises along a line, and falls along a cosine to a tenth."""
    rising = max(1, round(warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    turn = (step - rising) / max(1, steps - rising)
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * turn))
