"""Successive halving: groups of trials, of which the best go on with a larger budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from laconic.errors import ClusterError

Run = Callable[[Sequence[int], float, float], Mapping[int, float]]
"""Trains a group of trials from one budget to another, however it shares what there is, and returns their losses."""


class Rung(NamedTuple):
    """A group of trials that are compared at one budget.

    - `trials`: their numbers.
    - `budget`: what each has been trained for, in all.
    - `losses`: of each.
    """

    trials: tuple[int, ...]
    budget: float
    losses: Mapping[int, float]


def successive_halving(trials: int, run: Run, budget: float = 1.0, keep: int = 3) -> list[Rung]:
    """Return the rungs of a synchronous search: each waits for all trials of the one before, and takes the best part of
    them to a budget that is larger in proportion, down to one trial (Jamieson, Talwalkar, AISTATS 2016).

    - `trials`: how many begin.
    - `run`: trains a group.
    - `budget`: of the first rung.
    - `keep`: of so many trials one goes on.
    """
    if trials < 1 or keep < 2:
        raise ClusterError("a search has at least one trial, and at most half of a rung goes on")
    rungs: list[Rung] = []
    group, reached, until = tuple(range(trials)), 0.0, budget
    while True:
        losses = run(group, reached, until)
        rungs.append(Rung(group, until, dict(losses)))
        if len(group) == 1:
            return rungs
        best = sorted(group, key=lambda trial: (losses[trial], trial))[: max(len(group) // keep, 1)]
        group, reached, until = tuple(sorted(best)), until, until * keep
