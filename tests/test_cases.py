"""Of a product of parameters a few cases hold every value."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from tests.cases import covering, few_of


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


def test_of_seeds_the_first_is_taken_and_of_other_lists_every_value() -> None:
    sizes, words = [(3,), (5,)], [("sum",), ("mean",)]
    cases = [{"size": n, "word": w, "seed": (s,)} for n, w, s in product(sizes, words, range(3))]
    chosen = [cases[n] for n in few_of(cases)]
    assert [case["seed"] for case in chosen] == [(0,), (0,)]
    assert {case["size"] for case in chosen} == set(sizes) and {case["word"] for case in chosen} == set(words)


def test_a_test_without_lists_is_taken() -> None:
    assert few_of([{}]) == {0}
    assert few_of([{"seed": (4,)}, {"seed": (5,)}]) == {0}
