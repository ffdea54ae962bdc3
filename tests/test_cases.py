"""Of a product of parameters a few cases hold every value."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from tests.cases import covering


@pytest.mark.parametrize("lengths", [(1,), (7,), (4, 4), (2, 9), (3, 2, 5)])
def test_every_value_occurs_in_as_many_cases_as_the_longest_list_has(lengths: tuple[int, ...]) -> None:
    cases = [dict(zip("abc", values, strict=False)) for values in product(*map(range, lengths))]
    chosen = [cases[n] for n in covering(cases)]
    assert len(chosen) == max(lengths)
    for name, length in zip("abc", lengths, strict=False):
        counts = Counter(case[name] for case in chosen)
        assert len(counts) == length and max(counts.values()) - min(counts.values()) <= 1


def test_cases_that_are_missing_are_not_waited_for() -> None:
    """A value that stands in one case alone takes it along."""
    cases = [{"a": 0, "b": 0}, {"a": 0, "b": 1}, {"a": 1, "b": 1}]
    assert covering(cases) == {0, 2}
    assert covering([]) == set()
