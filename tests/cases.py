"""Which cases of a test `make test` takes, and which are left to the long run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest


def first_of(cases: Iterable[Any], count: int = 2) -> list[Any]:
    """The first cases as they are, and the others for the long run."""
    found = list(cases)
    rest = [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.long) for c in found[count:]]
    return [*found[:count], *rest]


def covering(cases: Sequence[Mapping[str, Hashable]]) -> set[int]:
    """Return the numbers of some cases in which every value of every parameter occurs.

    Each is a case that adds the most new values; among equals the one whose values were taken least often, so that each
    value of a short list meets about as many of a long one.
    """
    open_cases = {number: set(case.items()) for number, case in enumerate(cases)}
    missing = set().union(*open_cases.values())
    taken: Counter[tuple[str, Hashable]] = Counter()
    chosen: set[int] = set()
    while missing:
        best = min(open_cases, key=lambda n: (-len(open_cases[n] & missing), sum(taken[v] for v in open_cases[n]), n))
        values = open_cases.pop(best)
        chosen.add(best)
        taken.update(values)
        missing -= values
    return chosen
