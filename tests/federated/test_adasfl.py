"""AdaSFL: a cut that changes nothing, workers that finish together, and the time that this saves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from laconic.errors import LaconicError
from laconic.federated.adasfl import DriftEstimate, adasfl, best_period, drawn, equal_time_batches
from laconic.federated.partition import Shards, dirichlet, iid
from laconic.federated.population import Population
from laconic.federated.split import SplitTraining
from laconic.federated.task import Classification
from tests.federated.digits import digits

HIDDEN = 24


def task() -> Classification:
    full = digits()
    return Classification(
        lambda: nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 20), nn.ReLU(), nn.Linear(20, 10)),
        full.inputs,
        full.labels,
        full.test_inputs,
        full.test_labels,
    )


def three(shards: Shards, rate_bits: float = 1e6) -> Population:
    """Workers of speeds 1 : 2 : 4."""
    return Population(shards, sample_seconds=[4e-3, 2e-3, 1e-3], up_bits=rate_bits, down_bits=2 * rate_bits)


@pytest.mark.technique("adasfl", check=1)
@pytest.mark.parametrize("cut", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_worker_trains_as_if_the_model_were_whole(cut: int, seed: int) -> None:
    """The same batches, drawn as the worker draws them; the last round is cut short by nothing."""
    data, held = task(), np.arange(300)
    outcome = adasfl(data, Population(Shards.of([held])), 3, cut=cut, rate=0.1, batch=40, seed=seed)
    whole = data.build(seed)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for iteration in range(sum(r.period for r in outcome.rounds)):
        chosen = drawn(held, 40, seed, 0, iteration)
        optimizer.zero_grad()
        functional.cross_entropy(whole(data.inputs[chosen]), data.labels[chosen]).backward()
        optimizer.step()
    for ours, theirs in zip(outcome.model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_a_step_of_several_workers_is_that_of_their_own_losses() -> None:
    """The top's gradient is of all samples alike, a bottom's of its own worker's."""
    data = task()
    whole = data.build(0)
    assert isinstance(whole, nn.Sequential)
    split = SplitTraining(copy.deepcopy(whole[:2]), copy.deepcopy(whole[2:]), 2, functional.cross_entropy)
    parts = [torch.arange(0, 7), torch.arange(7, 10)]
    inputs, labels = [data.inputs[p] for p in parts], [data.labels[p] for p in parts]
    split.iterate(inputs, labels, [0.1, 0.05], 0.2)
    loss = functional.cross_entropy(whole(data.inputs[:10]), data.labels[:10])
    gradients = torch.autograd.grad(loss, list(whole[2:].parameters()))
    for before, after, gradient in zip(whole[2:].parameters(), split.top.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - 0.2 * gradient)
    for x, y, bottom, rate in zip(inputs, labels, split.bottoms, (0.1, 0.05), strict=True):
        gradients = torch.autograd.grad(functional.cross_entropy(whole(x), y), list(whole[:2].parameters()))
        for before, after, gradient in zip(whole[:2].parameters(), bottom.parameters(), gradients, strict=True):
            torch.testing.assert_close(after, before - rate * gradient)
    mean = 0.7 * split.flat(0) + 0.3 * split.flat(1)
    split.average([0.7, 0.3])
    torch.testing.assert_close(split.flat(0), mean)
    torch.testing.assert_close(split.flat(1), mean)


@pytest.mark.technique("adasfl", check=2)
@pytest.mark.parametrize(("rate_bits", "seed"), [(1e5, 0), (1e6, 1), (1e8, 2)])
def test_unequal_workers_finish_an_iteration_together_and_send_their_activations(rate_bits: float, seed: int) -> None:
    outcome = adasfl(task(), three(iid(1400, 3, seed), rate_bits), 2, cut=2, rate=0.1, seed=seed)
    bottom = 4 * (64 * HIDDEN + HIDDEN)
    for found in outcome.rounds:
        times = found.iteration_seconds
        assert (times.max() - times.min()) / times.max() < 0.05
        assert found.batches[2] == 128 and (np.diff(found.batches) > 0).all()
        expected = found.period * found.batches * 4 * HIDDEN + bottom
        np.testing.assert_array_equal(found.up_bytes, expected)
        np.testing.assert_array_equal(found.down_bytes, expected)
    equal = adasfl(task(), three(iid(1400, 3, seed), rate_bits), 1, cut=2, rate=0.1, equal_batches=True).rounds[0]
    assert np.ptp(equal.iteration_seconds) / equal.iteration_seconds.max() > 0.05


def test_batches_are_in_inverse_proportion_to_what_a_sample_takes() -> None:
    assert equal_time_batches(np.array([1.0, 0.5, 0.25, 10.0]), 20).tolist() == [5, 10, 20, 1]


def test_periods_grow_with_the_cost_of_averaging_and_shrink_with_drift() -> None:
    assert best_period(1.0, 0.0, 0.1, 50) == 1
    assert best_period(1.0, 5.0, 0.0, 50) == 50
    by_cost = [best_period(1.0, cost, 0.01, 50) for cost in (0.1, 1.0, 10.0, 100.0)]
    by_drift = [best_period(1.0, 5.0, drift, 50) for drift in (1e-4, 1e-3, 1e-2, 1e-1)]
    assert by_cost == sorted(by_cost) and by_drift == sorted(by_drift, reverse=True)
    assert len(set(by_cost)) > 2 and len(set(by_drift)) > 2


def test_drift_is_that_of_quadratics_with_known_curvature() -> None:
    """Two workers with targets +b and −b around c, curvature h, one step from w: gradients h·(w − c ∓ b)."""
    rate, curvature, c, b, estimate = 0.01, 3.0, 5.0, 2.0, DriftEstimate(0.01)
    w = torch.tensor([1.0], dtype=torch.float64)
    for _ in range(2):
        ends = [w - rate * curvature * (w - c - side * b) for side in (1, -1)]
        estimate.update(w, ends, [0.5, 0.5], 1)
        last, w = w, (ends[0] + ends[1]) / 2
    assert estimate.value == pytest.approx(float((rate * curvature) ** 2 * b**2 / (last - c) ** 2))


def test_a_time_limit_is_kept_and_made_use_of() -> None:
    outcome = adasfl(task(), three(iid(1400, 3, 0)), 100, cut=2, rate=0.1, period=7, seconds=10.0)
    last = outcome.rounds[-1]
    assert (
        last.seconds <= 10 < last.seconds + last.iteration_seconds.max() + (last.seconds - outcome.rounds[-2].seconds)
    )
    assert [r.period for r in outcome.rounds[:-1]] == [7] * (len(outcome.rounds) - 1)


def test_a_cut_outside_the_model_is_refused() -> None:
    with pytest.raises(LaconicError, match="cut between"):
        adasfl(task(), three(iid(1400, 3, 0)), 1, cut=5, rate=0.1)


@pytest.mark.long
@pytest.mark.technique("adasfl", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_quarter_of_the_time_of_plain_split_learning_is_saved(seed: int) -> None:
    """To 90 % of digits among workers of speeds 1 : 2 : 4, against the best of three fixed periods with equal batches.
    A run that has taken longer than the best so far is stopped."""
    population, best = three(dirichlet(digits().labels.numpy(), 3, 0.5, seed)), 200.0
    for period in (10, 5, 20):
        plain = adasfl(
            task(), population, 10_000, cut=2, rate=0.3, seed=seed, period=period, equal_batches=True, seconds=best
        )
        best = min(best, getattr(plain.first(0.9), "seconds", best))
    assert best < 200
    assert adasfl(task(), population, 10_000, cut=2, rate=0.3, seed=seed, seconds=0.75 * best).first(0.9) is not None
