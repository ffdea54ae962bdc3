"""Symmetric workers are priced as separate workers would be simulated, for every sentence and any stragglers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute, Stragglers
from laconic.virtual.symmetric import price
from tests.virtual.test_time import chain, stepper

SENTENCES = [
    "bsp",
    "bsp / cast_bf16",
    "bsp / cast_fp16+ef / allreduce / wfbp(0)",
    "bsp / none / allreduce(rank)",
    "bsp / none / allreduce / sequential",
]


def specs(widths: list[int]) -> list[TensorSpec]:
    return [TensorSpec(n, tuple(p.shape), p.dtype, "matrix") for n, p in chain(widths).named_parameters()]


@pytest.mark.parametrize("sentence", SENTENCES)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    workers=st.integers(2, 5),
    slowness=st.lists(st.floats(0.5, 3), min_size=1, max_size=4),
    probability=st.floats(0, 1),
    two_levels=st.booleans(),
)
def test_symmetric_workers_cost_what_separate_workers_cost(
    sentence: str, widths: list[int], workers: int, slowness: list[float], probability: float, two_levels: bool
) -> None:
    levels = [Level(1, 8e6, 1e-4)] + ([Level(2, 4e6, 1e-3)] if two_levels else [])
    network = Network(workers, tuple(levels))
    compute = Compute(0.01, 0.02, 0.001, tuple(slowness), Stragglers(probability, 4.0), seed=3)
    out = laconic.simulate(stepper(widths, sentence, 4), workers, network, compute)
    start = min(worker["begins"][0] for worker in out.results)  # agreeing and broadcasting come before the first step
    ends = np.array([max(worker["ends"][step] for worker in out.results) for step in range(4)]) - start
    priced = price(sentence, specs(widths), network, compute, steps=4)
    np.testing.assert_allclose(np.diff(priced.ends_seconds), np.diff(ends), rtol=1e-9)


@pytest.mark.parametrize("sentence", ["bsp / none / collective(ring)", "bsp / bucket_means+per_hop / allreduce"])
@pytest.mark.parametrize("workers", [2, 4])
def test_programs_cost_about_what_separate_workers_cost(sentence: str, workers: int) -> None:
    """A program is priced as a whole: messages of separate workers need not wait for the end of every step."""
    network, compute, widths = Network(workers, (Level(1, 8e6, 1e-4),)), Compute(0.01, 0.02, 0.001), [40, 30, 20]
    text = f"{sentence} / sequential"
    out = laconic.simulate(stepper(widths, text, 4), workers, network, compute)
    ends = np.array([max(worker["ends"][step] for worker in out.results) for step in range(4)])
    priced = price(text, specs(widths), network, compute, steps=4)
    np.testing.assert_allclose(np.diff(priced.ends_seconds), np.diff(ends), rtol=0.1)


def test_each_worker_straggles_by_itself_however_many_there_are() -> None:
    compute = Compute(straggling=Stragglers(0.5, 3.0), slowness=(1.0, 2.0), seed=1)
    many = compute.factors(5000, 7)
    assert [compute.factor(rank, 7) for rank in (0, 3, 1023, 1024, 4999)] == many[[0, 3, 1023, 1024, 4999]].tolist()
    assert set(np.unique(many)) == {1.0, 2.0, 3.0, 6.0}
    assert not np.array_equal(many, compute.factors(5000, 8))


def test_tiers_are_refused() -> None:
    with pytest.raises(LaconicError, match="tiers"):
        price("[bsp]@node > [bsp]@site", specs([2, 2]), Network.flat(2, 1e6))
