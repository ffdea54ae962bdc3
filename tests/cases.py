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


def few_of(cases: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the numbers of the cases that `make test` takes of a test: the first seed, and of the product of the other
    lists as few as hold every value.

    - `cases`: for each, its value of every list.
    """
    kept = [n for n, case in enumerate(cases) if case.get("seed") == cases[0].get("seed")]
    by_identity = [{name: tuple(map(id, values)) for name, values in cases[n].items()} for n in kept]
    return {kept[n] for n in covering(by_identity)} if any(by_identity) else set(kept)


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
