"""Merging dense messages: the authors' plans, and the best of all that there are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.comm_plan import predicted_seconds
from laconic.schedule.merging import DenseCosts, exact, exact_dense, greedy, timeline
from laconic.schedule.mg_wfbp import MGWFBP, merged
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from tests.compression.test_merging import all_groupings
from tests.data import cases


@pytest.mark.evidence("mg_wfbp", recording="mg_wfbp.json")
def test_plans_are_the_authors() -> None:
    for case in cases("mg_wfbp.json"):
        price, width = Price(case["alpha_s"], case["beta_s_per_byte"]), case["bytes_per_element"]
        sizes, backward = case["sizes_elements"], case["backward_s"]
        costs = DenseCosts(price, width)
        plan = greedy(sizes, backward, costs)
        assert [list(group) for group in plan] == case["groups"]
        specs = [TensorSpec(str(i), (n,), {2: torch.float16, 4: torch.float32}[width]) for i, n in enumerate(sizes)]
        timing = Timing((0.0,) * len(sizes), tuple(backward), price)
        assert merged(specs, list(reversed(range(len(sizes)))), timing, rule="greedy") == case["groups"]
        finish = timeline(plan, sizes, backward, costs).finish
        assert finish == pytest.approx(case["finish_s"], rel=1e-9)
        for best in (exact(sizes, backward, costs), exact_dense([width * n for n in sizes], backward, price)):
            assert timeline(best, sizes, backward, costs).finish <= finish * (1 + 1e-12)


@st.composite
def profiles(draw: st.DrawFn, most: int) -> tuple[list[TensorSpec], list[int], Timing]:
    """Tensors over four orders of magnitude in some order; start-ups from nothing to more than all of backward."""
    count = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(1, 10_000), min_size=count, max_size=count))
    arrival = draw(st.permutations(range(count)))
    forward, backward = (draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)) for _ in range(2))
    price = Price(draw(st.sampled_from([0.0, 1e-3, 0.1, 0.5, 2.0, 20.0])), draw(st.floats(0, 1e-4)))
    specs = [TensorSpec(str(i), (n,), torch.float32) for i, n in enumerate(sizes)]
    return specs, arrival, Timing(tuple(forward), tuple(backward), price)


@pytest.mark.long
@given(profiles(most=12))
@settings(max_examples=50, deadline=None)
@pytest.mark.technique("mg_wfbp", check=1)
def test_no_other_grouping_of_neighbours_is_faster(given: tuple[list[TensorSpec], list[int], Timing]) -> None:
    """The plan against every tensor alone, a single bucket and all others, and the iteration it is priced at."""
    specs, arrival, timing = given
    order = list(reversed(arrival))  # the model numbers tensors as the forward pass uses them
    sizes, backward = [specs[i].numel for i in order], [timing.backward[i] for i in order]
    plan = MGWFBP().plan(specs, arrival, timing)
    groups = tuple(tuple(order.index(i) for i in bucket) for bucket in plan.buckets)
    costs = DenseCosts(timing.price)
    finish = timeline(groups, sizes, backward, costs).finish
    ends = [timeline(other, sizes, backward, costs).finish for other in all_groupings(len(specs))]
    alone, single = ends[-1], ends[0]
    assert finish <= min(alone, single) * (1 + 1e-12) + 1e-15
    assert finish == pytest.approx(min(ends), rel=1e-9, abs=1e-12)
    assert predicted_seconds(plan, arrival, timing) == pytest.approx(sum(timing.forward) + finish, rel=1e-9, abs=1e-12)


@given(profiles(most=9))
@settings(max_examples=50, deadline=None)
def test_the_published_rule_is_a_grouping_of_the_same_tensors(
    given: tuple[list[TensorSpec], list[int], Timing],
) -> None:
    specs, arrival, timing = given
    published, best = (MGWFBP(rule).plan(specs, arrival, timing) for rule in ("greedy", "exact"))
    assert [i for bucket in published.buckets for i in bucket] == arrival
    slower = predicted_seconds(published, arrival, timing)
    assert slower >= predicted_seconds(best, arrival, timing) * (1 - 1e-9) - 1e-12
