"""ALQ and AMQ: unbiased with whatever table, fits that lower the model's variance, and one table for all."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import laconic
from laconic.compression.adaptive_levels import ALQ, AMQ, Adaptive, mixture
from laconic.compression.level_tables import lost, mirrored
from laconic.compression.truncated import (
    Array,
    Normals,
    descend,
    model_variance,
    moved,
    multiplier,
    powers,
    slope,
    sweep,
)
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.data import cases
from tests.sync import digits

MODELS = st.lists(
    st.tuples(st.floats(-0.05, 0.05), st.floats(0.005, 0.4), st.floats(0.1, 10)), min_size=1, max_size=4
).map(lambda parts: Normals.of(*(list(column) for column in zip(*parts, strict=True))))
LEVELS = st.sets(st.integers(1, 999), max_size=7).map(lambda inner: np.array(sorted({*inner, 1000})) / 1000)


# ---------------------------------------------------------------------------------------------- the authors' numbers


@pytest.mark.evidence("alq", recording="alq.json")
@pytest.mark.long
def test_alq_fits_what_its_authors_program_does() -> None:
    """Sweep by sweep from every start, where zero counts as a level. What they find from 1 - F(c), they know no better
    than float64 knows numbers near one: divided by the density there."""
    for case in cases("alq.json"):
        model, made = Normals.of(case["mean"], case["sigma"]), ALQ(bits=case["bits"], first=case["init"])
        kept = np.array(case["positive_levels_after_each_sweep"])
        np.testing.assert_allclose(made.positive(made.init(_spec())).numpy(), kept[0], rtol=1e-6)
        for k, (before, after) in enumerate(pairwise(kept)):
            found = sweep(before, model, zero=True)
            blur = 4e-16 / (model.moments(after - 1e-6, after)[0] / 1e-6 + 1e-11)
            assert bool((np.abs(found - after) <= 1e-6 * after + blur).all()), (case["sigma"], case["bits"], k)
            whole = 2 * float(model_variance(after, model.folded))  # of both signs
            assert whole == pytest.approx(case["variance_after_each_sweep"][k], rel=1e-7)
        state = {"levels": torch.from_numpy(kept[0]).float()}
        fitted = replace(made, smallest="published", sweeps=case["sweeps"]).fitted(state, model)["levels"]
        np.testing.assert_allclose(mirrored(fitted).numpy(), case["levels"], rtol=1e-4)


@pytest.mark.evidence("amq", recording="amq.json")
@pytest.mark.long
def test_amq_descends_as_its_authors_program_does() -> None:
    for case in cases("amq.json"):
        model, count = Normals.of(case["mean"], case["sigma"]), 2 ** (case["bits"] - 1)
        p: Any = case["start"]
        for expected in case["multiplier_after_each_step"]:
            p = descend(p, count, model, case["lr"])
            assert float(p) == pytest.approx(expected, rel=1e-9)
        made = AMQ(bits=case["bits"])
        table = made.codec({"multiplier": torch.tensor(float(p))}).table
        np.testing.assert_allclose(table.numpy(), case["levels"], rtol=1e-5)
        assert float(model_variance(powers(p, count), model)) == pytest.approx(case["model_variance_at_end"], rel=1e-9)
        half = float(model_variance(powers(0.5, count), model))
        assert half == pytest.approx(case["model_variance_at_half"], rel=1e-9)


# ---------------------------------------------------------------------------------------------- the model


def test_powers_of_one_multiplier_rise_to_one() -> None:
    assert powers(0.5, 4).tolist() == [0.125, 0.25, 0.5, 1.0] and powers(0.3, 1).tolist() == [1.0]
    np.testing.assert_allclose(powers(np.array([0.5, 0.1]), 3), [[0.25, 0.5, 1.0], [0.01, 0.1, 1.0]], rtol=1e-15)


@given(model=MODELS, levels=LEVELS, zero=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_models_variance_is_what_rounding_its_draws_loses(model: Normals, levels: Array, zero: bool) -> None:
    """By a fine quadrature of (high - r)(r - low) over the density, component by component."""
    edges = np.linspace(0, 1, 20_001)
    middle = (edges[1:] + edges[:-1]) / 2
    mass, _, _ = model.moments(edges[:-1], edges[1:])
    table = mirrored(torch.from_numpy(levels))
    if zero:
        table = torch.cat([table, torch.zeros(1)]).sort().values
    expected = float((lost(torch.from_numpy(middle), table).numpy() * mass).sum())
    assert float(model_variance(levels, model, zero)) == pytest.approx(expected, rel=1e-3, abs=1e-8)


# ---------------------------------------------------------------------------------------------- alq


@pytest.mark.technique("alq", check=1)
@given(levels=LEVELS, kind=st.sampled_from(["normal", "heavy", "sparse", "constant"]), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_any_table_is_right_in_the_mean(levels: Array, kind: str, seed: int) -> None:
    """A thousand copies of a bucket, rounded by the word with that table in its state."""
    d, draws = 24, 1000
    v = tensor(kind, (d,), seed)
    v[0] = 0.7
    (outcome,) = meet(ALQ(bucket=d), [v.repeat(draws)], [{"levels": torch.from_numpy(levels).float()}], step=seed)
    found, norm = outcome.result.view(draws, d).double(), v.double().norm()
    variance = norm**2 * lost(v.double() / norm, mirrored(torch.from_numpy(levels)))
    error = (found.mean(dim=0) - v).abs()
    assert bool((error <= 4 * (variance.clamp(min=0) / draws).sqrt() + 2e-6 * v.abs()).all())


@pytest.mark.long
@pytest.mark.technique("alq", check=2)
@given(model=MODELS, levels=LEVELS, zero=st.booleans())
@settings(max_examples=20, deadline=None)
def test_no_update_of_a_level_raises_the_models_variance(model: Normals, levels: Array, zero: bool) -> None:
    """Of the table in use; and where zero counts as a level, of the table with zero. Each update is the least there is
    between the neighbours."""
    found = levels.copy()
    for _ in range(3):
        for j in range(len(found) - 1):
            before = float(model_variance(found, model, zero))
            found[j] = moved(found, j, model, zero)
            after = float(model_variance(found, model, zero))
            assert after <= before + 1e-13 + 1e-9 * before
            low = found[j - 1] if j else 0.0
            for share in (0.01, 0.3, 0.7, 0.99):
                other = found.copy()
                other[j] = low + share * (found[j + 1] - low)
                assert after <= float(model_variance(other, model, zero)) + 1e-13 + 1e-9 * before
    assert bool((np.diff(found) >= 0).all()) and found[-1] == 1


@pytest.mark.long
@pytest.mark.technique("alq", check=2)
@given(
    parts=st.lists(
        st.tuples(st.floats(-0.05, 0.05), st.floats(0.005, 0.4), st.floats(0.1, 10)), min_size=1, max_size=4
    ),
    bits=st.integers(2, 5),
    first=st.sampled_from(["exponential", "uniform"]),
)
@settings(max_examples=15, deadline=None)
def test_a_fit_ends_with_at_most_the_variance_it_began_with(parts: Any, bits: int, first: str) -> None:
    model = mixture(np.array(parts), weighted=True)
    assert model is not None
    made = ALQ(bits=bits, first=first)
    state = made.init(_spec())
    begin, end = (
        float(model_variance(made.positive(s).double().numpy(), model.folded))
        for s in (state, made.fitted(state, model.folded))
    )
    assert end <= begin * (1 + 1e-6)


@pytest.mark.long
@pytest.mark.technique("alq", check=3)
@pytest.mark.parametrize("word", ["alq", "alq(smallest=published, weighted=false)", "amq"])
@pytest.mark.parametrize("workers", [1, 3])
def test_all_hold_the_same_table_after_every_update(word: str, workers: int) -> None:
    made = replace(compressor(word), bucket=64, updates=(1, 3), every=4)  # type: ignore[type-var]
    assert isinstance(made, Adaptive)
    states, tables = None, []
    for step in range(10):
        inputs = [(1 + rank) * tensor("heavy", seed=10 * step + rank) for rank in range(workers)]
        messages: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=messages)
        states = [outcome.state for outcome in outcomes]
        assert [how for how, _ in messages[0]] == ["Gather"] * (2 if made.due(step) else 1)
        if made.due(step):
            assert messages[0][0][1].nbytes == 12 * min(16, -(-480 // 64))
        for state in states[1:]:
            assert all(torch.equal(state[key], states[0][key]) for key in state)
        tables.append(made.codec(states[0]).table)
    changed = [not torch.equal(a, b) for a, b in pairwise(tables)]
    assert changed == [step in (1, 3, 4, 8) for step in range(1, 10)]


@pytest.mark.long
@pytest.mark.technique("alq", check=3)
def test_and_so_do_workers_that_train() -> None:
    def body() -> list[Tensor]:
        images, labels, _, _ = digits.data()
        model: Any = digits.network(0)
        strategy = "alq(bucket=256, updates=[1, 2])"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
        for step in range(3):
            chosen = torch.arange(16) + 16 * (laconic.rank() + 4 * step)
            torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        memory = optimizer.session.partitions[0].tiers[0].memory
        return [state["levels"] for state in memory.values()]

    first, *others = laconic.simulate(body, 4).results
    assert len(first) == 4 and all(len(levels) == 4 for levels in first)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[0], 2.0 ** torch.arange(-3.0, 1)), "they have been fitted"


@pytest.mark.long
@pytest.mark.parametrize("word", ["alq", "amq"])
def test_a_fitted_table_loses_less_of_what_it_was_fitted_to(word: str) -> None:
    """Gaussian buckets of 2048 in three bits: several times less than the table before."""
    made = replace(compressor(word), bucket=2048, updates=(1,))  # type: ignore[type-var]
    inputs = [tensor("normal", (8 * 2048,), rank) for rank in range(2)]
    mean, states, lose = torch.stack(inputs).mean(dim=0), None, []
    for step in range(2):
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        lose.append(float((outcomes[0].result - mean).square().sum()))
    assert lose[1] < lose[0] / 4


@pytest.mark.long
@pytest.mark.parametrize("word", ["alq", "amq"])
def test_nothing_is_fitted_to_nothing(word: str) -> None:
    """Zeros, and buckets that are not finite, leave the table as it is; one finite bucket of one worker is enough."""
    made = replace(compressor(word), bucket=16, updates=(0,))  # type: ignore[type-var]
    assert isinstance(made, Adaptive)
    before = made.codec(made.init(_spec())).table
    for x in (torch.zeros(40), torch.full((40,), math.nan), torch.full((40,), math.inf)):
        (outcome,) = meet(made, [x])
        assert torch.equal(made.codec(outcome.state).table, before)
        outcomes = meet(made, [x, tensor("normal", (40,))])
        assert not torch.equal(made.codec(outcomes[0].state).table, before)
        assert bool(made.codec(outcomes[0].state).table.isfinite().all())
    for kind in ("constant", "single", "sparse"):  # no deviation at all, or next to none
        (outcome,) = meet(replace(made, bucket=512), [tensor(kind)])
        table = made.codec(outcome.state).table
        assert bool(table.isfinite().all()) and bool((table.diff() >= 0).all()) and table[-1] == 1


def test_a_memory_around_it_is_refused() -> None:
    for word in ("alq+ef", "amq+ef"):
        with pytest.raises(StrategyError, match="write qsgd"):
            compressor(word)


# ---------------------------------------------------------------------------------------------- amq


@pytest.mark.long
@pytest.mark.technique("amq", check=1)
@given(model=MODELS, bits=st.integers(2, 5), before=st.floats(0.05, 0.95))
@settings(max_examples=10, deadline=None)
def test_the_multiplier_found_is_not_worse_than_a_half(model: Normals, bits: int, before: float) -> None:
    count = 2 ** (bits - 1)
    found = multiplier(before, count, model.folded)
    at = [float(model_variance(powers(p, count), model.folded)) for p in (found, 0.5, before)]
    assert 0 < found < 1 and at[0] <= min(at[1:])


@pytest.mark.long
@pytest.mark.technique("amq", check=1)
def test_nor_is_what_the_word_finds_on_gradients() -> None:
    for kind, bucket in (("normal", 256), ("heavy", 256), ("normal", 2048), ("sparse", 512)):
        made = AMQ(bucket=bucket, updates=(0,), bits=4)
        x = tensor(kind, (8192,))
        handed: list[list[tuple[str, Tensor]]] = []
        (outcome,) = meet(made, [x], payloads=handed)
        model = mixture(handed[0][0][1].double().numpy(), weighted=True)
        assert model is not None
        found = float(outcome.state["multiplier"])
        at = [float(model_variance(powers(p, 8), model.folded)) for p in (found, 0.5)]
        assert found != 0.5 and at[0] <= at[1]


@pytest.mark.long
@pytest.mark.technique("amq", check=2)
@given(model=MODELS, bits=st.integers(2, 5), p=st.floats(0.05, 0.95))
@settings(max_examples=80, deadline=None)
def test_the_slope_is_that_of_finite_differences(model: Normals, bits: int, p: float) -> None:
    count, h = 2 ** (bits - 1), 1e-6
    up, down = (float(model_variance(powers(p + e, count), model)) for e in (h, -h))
    assert float(slope(p, count, model)) == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("word", ["alq", "amq"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_level_takes_b_bits_and_a_bucket_a_norm(word: str, bits: int) -> None:
    x, made = tensor("normal", (1000,)), replace(compressor(word), bits=bits, bucket=256)  # type: ignore[type-var]
    handed: list[list[tuple[str, Tensor]]] = []
    meet(made, [x], payloads=handed)
    assert handed[0][0][1].nbytes == made.payload_bytes(spec_of(x), 1) == math.ceil(1000 * bits / 8) + 4 * 4


def _spec() -> Any:
    return spec_of(tensor("normal"))


# ---------------------------------------------------------------------------------------------- by hand


def test_buckets_count_by_their_squared_norms_or_equally() -> None:
    """Those without a norm, or with a value that is not finite, count nothing."""
    rows = np.array([[0.1, 0.2, 1.0], [0.0, 0.3, 2.0], [0.5, 0.5, 0.0], [0.0, np.nan, 9.0]])
    weighted, equal = mixture(rows, weighted=True), mixture(rows, weighted=False)
    assert weighted is not None and equal is not None
    np.testing.assert_allclose(weighted.weight, [0.2, 0.8])
    np.testing.assert_allclose(equal.weight, [0.5, 0.5])
    np.testing.assert_allclose(weighted.mean, [0.1, 0.0])
    np.testing.assert_allclose(weighted.deviation, [0.2, 0.3])
    assert mixture(rows[2:], weighted=True) is None


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("j", [0, 1, 2])
def test_a_level_moves_to_the_best_place_of_a_fine_grid(zero: bool, j: int) -> None:
    model = Normals.of([0.02, -0.01], [0.1, 0.3], [1.0, 2.0]).folded
    levels = np.array([0.1, 0.2, 0.6, 1.0])
    low, high = levels[j - 1] if j else 0.0, levels[j + 1]
    tables = np.tile(levels, (2001, 1))
    tables[:, j] = np.linspace(low, high, 2001)
    best = tables[np.argmin(model_variance(tables, model, zero)), j]
    found = moved(levels, j, model, zero)
    assert found == pytest.approx(best, abs=(high - low) / 1000) and abs(found - levels[j]) > 0.005


def test_a_level_between_equal_neighbours_stays() -> None:
    levels = np.array([0.5, 0.5, 0.5, 1.0])
    assert moved(levels, 1, Normals.of(0.0, 0.3).folded, zero=True) == 0.5


def test_statistics_are_those_of_the_shares_of_a_norm() -> None:
    """Buckets of four, of which the last has two coordinates: mean and deviation over the norm, and the norm."""
    flat = torch.tensor([3.0, 4.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, -6.0, 8.0])
    found = ALQ(bucket=4, buckets=9).statistics(flat, Meeting(0, 1, 0, "x"))
    shares = torch.tensor([0.6, 0.8, 0.0, 0.0]), torch.full((4,), 0.5), torch.zeros(4), torch.tensor([-0.6, 0.8])
    norms = (5.0, 4.0, 0.0, 10.0)
    expected = [[float(s.mean()), float(s.std(correction=0)), norm] for s, norm in zip(shares, norms, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-5)


@pytest.mark.technique("alq", check=2)
@pytest.mark.parametrize(("smallest", "even"), [("exact", [1 / 5, 3 / 5, 1.0]), ("published", [1 / 3, 2 / 3, 1.0])])
def test_levels_for_uniform_coordinates_are_evenly_spaced(smallest: str, even: list[float]) -> None:
    """With their mirror images, or with zero. A fit makes as many sweeps as it should: each brings the levels nearer to
    where the variance is least, and lowers it."""
    uniform, first = Normals.of(0.0, 30.0), torch.tensor([0.5, 0.9, 1.0])
    made = [ALQ(smallest=smallest, sweeps=sweeps) for sweeps in (1, 2, 10)]
    tables = [first, *(alq.fitted({"levels": first}, uniform)["levels"] for alq in made)]
    distances = [float((levels - torch.tensor(even)).abs().max()) for levels in tables]
    assert distances[0] > distances[1] > 2 * distances[2] > 100 * distances[3] and distances[3] < 1e-3
    variances = [float(model_variance(levels.double().numpy(), uniform, smallest == "published")) for levels in tables]
    assert all(after < before for before, after in pairwise(variances))


@pytest.mark.technique("amq", check=2)
@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_slope_is_that_of_finite_differences_at_some_places(p: float, count: int) -> None:
    model, h = Normals.of([0.02, -0.01], [0.1, 0.3], [1.0, 2.0]).folded, 1e-6
    up, down = (float(model_variance(powers(p + e, count), model)) for e in (h, -h))
    found = float(slope(p, count, model))
    assert found == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-8)
    assert found != 0 or count == 1
