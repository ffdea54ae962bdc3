"""Merging neighbours before they are sparsified: the authors' plans, and how far from the best they are."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import pytest

from laconic import registry
from laconic.errors import LaconicError
from laconic.schedule.merging import Groups, SparseCosts, exact, greedy, timeline
from tests.data import cases


def all_groupings(count: int) -> list[Groups]:
    """Every way to cut the tensors, from the last to the first, into neighbours."""
    found = []
    for cuts in product([False, True], repeat=count - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        found.append(tuple(tuple(count - 1 - i for i in range(a, b)) for a, b in pairwise(ends)))
    return found


def profile(seed: int, count: int) -> tuple[list[int], list[float], SparseCosts]:
    """Sizes over four orders of magnitude; start-ups from far below to far above what backward takes."""
    draw = random.Random(seed)
    sizes = [int(10 ** draw.uniform(2, 6)) for _ in range(count)]
    backward = [draw.uniform(1e-4, 1e-3) for _ in range(count)]
    return sizes, backward, SparseCosts(16, 10 ** draw.uniform(-5, -2), 1e-8, 2e-10)


@pytest.mark.evidence("omgs_sgd", recording="omgs_sgd.json")
def test_plans_are_the_authors() -> None:
    for case in cases("omgs_sgd.json"):
        costs = SparseCosts(
            case["workers"], case["alpha_s"], case["beta_s_per_byte"], case["select_s"], case["density"]
        )
        sizes, backward = case["sizes_elements"], case["backward_s"]
        plan = greedy(sizes, backward, costs)
        assert [list(group) for group in plan] == case["groups"]
        found = timeline(plan, sizes, backward, costs).not_hidden
        assert found == pytest.approx(case["non_overlapped_s"], rel=1e-9)


@pytest.mark.technique("omgs_sgd", check=1)
@pytest.mark.parametrize("planner", [greedy, exact])
def test_a_large_start_up_makes_one_group(planner: Any) -> None:
    for seed in range(20):
        sizes, backward, costs = profile(seed, 12)
        slow = SparseCosts(costs.workers, 10.0, costs.beta, costs.select)
        assert planner(sizes, backward, slow) == (tuple(reversed(range(12))),)


@pytest.mark.technique("omgs_sgd", check=1)
@pytest.mark.parametrize("count", [1, 2, 5, 9, 10])
def test_the_plan_is_within_a_quarter_of_the_best(count: int) -> None:
    """And the exact one is the best, of all groupings of neighbours. The worst of the greedy ones is some way off."""
    ratios = []
    for seed in range(60 if count < 9 else 25):
        given = profile(100 * count + seed, count)
        best = min(timeline(groups, *given).finish for groups in all_groupings(count))
        assert timeline(exact(*given), *given).finish == pytest.approx(best, rel=1e-12)
        ratios.append(timeline(greedy(*given), *given).finish / best)
    assert min(ratios) >= 1 - 1e-9 and max(ratios) <= 1.25


def test_the_timeline_is_the_models() -> None:
    """Selection holds backward up; a message waits for the one before."""
    costs = SparseCosts(workers=2, alpha=1.0, beta=0.25, select=0.5, density=0.5)
    found = timeline(((1,), (0,)), [4, 2], [10.0, 3.0], costs)
    assert found.selected == (4.0, 18.0)  # 3 + 0.5·2·1, then + 10 + 0.5·4·2
    assert found.starts == (4.0, 18.0)
    assert found.ends == (10.0, 28.0)  # 2(1 + 0.25·4·2·x·0.5)
    assert found.not_hidden == 10.0
    assert timeline(((1, 0),), [4, 2], [10.0, 3.0], costs).starts[0] == pytest.approx(13 + 0.5 * 6 * 2.584962500721156)


def test_it_is_in_the_catalogue_and_refuses_half_a_profile() -> None:
    assert registry.find("omgs_sgd").axis == "schedule"
    with pytest.raises(LaconicError, match="give one of each"):
        greedy([1, 2], [0.1], SparseCosts(2, 1.0, 1.0, 1.0))
