"""Stochastic gradient push: weights sum to N, the mean is kept, and nobody waits for an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import laconic
from laconic.network.network_tree import Network
from laconic.runtime.in_flight import complete
from laconic.virtual.compute import Compute
from tests.sync.gossiping import DIMENSION, Point, draws, mixing_of, sgd, walk

UNEVEN = 'edges("0>1,1>2,2>3,3>0,0>2,3>1")'


def mass(tier: Any) -> tuple[np.ndarray, float, float]:
    """All of (x, w) that this worker holds or is about to receive, and its own w."""
    complete(list(tier.in_flight.values()))
    x, w = tier.sync_state["x.0"].clone(), tier.sync_state["w"].clone()
    own = float(w)
    for flight in tier.in_flight.values():
        x, w = x + flight.result[0], w + flight.result[1]
    return x.numpy(), float(w), own


@pytest.mark.technique("sgp", check=1)
@pytest.mark.parametrize("words", ["sgp", "sgp(2)", f"sgp / {UNEVEN}", f"sgp(1) / {UNEVEN}", "sgp(3) / fp16 / ring"])
def test_weights_sum_to_n_and_the_mean_follows_the_mean_gradient(words: str) -> None:
    seen = walk(words, 4, 15, sgd(0.1), targets=draws(4, DIMENSION), look=mass)
    mean = np.zeros(DIMENSION)
    for step in range(15):
        x, w, own = (np.array(part) for part in zip(*seen.seen[step], strict=True))
        assert w.sum() == pytest.approx(4, abs=1e-12)
        mean = mean - 0.1 * seen.gradients[step].mean(axis=0)
        np.testing.assert_allclose(x.sum(axis=0) / 4, mean, atol=1e-9)
    assert ("edges" in words or "(" in words) == bool(np.abs(own - 1).max() > 0.01)


@pytest.mark.technique("sgp", check=2)
@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_one_peer_at_a_time_agrees_after_log2_n_steps(rounds: int) -> None:
    workers = 2**rounds
    starts = draws(workers, DIMENSION)
    seen = walk("sgp", workers, rounds, curvature=0.0, starts=starts)
    np.testing.assert_allclose(seen.x[-1], np.tile(starts.mean(axis=0), (workers, 1)), atol=1e-12)
    assert rounds == 1 or seen.disagreement[-2] > 1e-3  # and not sooner
    assert seen.sent_bytes == [rounds * 8 * (DIMENSION + 1)] * workers  # a model and one number


@pytest.mark.long
def test_push_sum_agrees_on_the_mean_where_some_are_received_more_than_others() -> None:
    starts = draws(4, DIMENSION)
    matrix = mixing_of(f"sgp / {UNEVEN}", 4).at(0)
    assert not np.allclose(matrix.sum(axis=1), 1)
    seen = walk(f"sgp / {UNEVEN}", 4, 60, curvature=0.0, starts=starts)
    np.testing.assert_allclose(seen.x[-1], np.tile(starts.mean(axis=0), (4, 1)), atol=1e-9)


@pytest.mark.long
def test_what_is_late_is_counted_so_many_steps_later() -> None:
    starts, matrix = draws(4, DIMENSION), mixing_of(f"sgp / {UNEVEN}", 4).at(0)
    seen = walk(f"sgp(2) / {UNEVEN}", 4, 80, curvature=0.0, starts=starts)
    kept = np.diag(np.diagonal(matrix))
    mass = [np.concatenate([starts, np.ones((4, 1))], axis=1)]  # (x, w) of every worker, by step
    for step in range(80):
        late = (matrix - kept) @ mass[step - 2] if step >= 2 else 0.0
        mass.append(kept @ mass[step] + late)
        np.testing.assert_allclose(seen.x[step + 1], mass[-1][:, :-1] / mass[-1][:, -1:], atol=1e-12)
    assert np.abs(seen.x[-1] - starts.mean(axis=0)).max() < 0.01


def test_the_end_counts_what_is_late() -> None:
    """Two steps' messages are in flight, and without them the mean of what workers hold is another."""
    starts = draws(4, DIMENSION)

    def body() -> tuple[np.ndarray, np.ndarray]:
        model = Point()
        model, optimizer = laconic.distribute(model, sgd()(model.parameters()), f"sgp(2) / {UNEVEN}")
        model.x.data.copy_(torch.from_numpy(starts[laconic.rank()]))
        for _ in range(5):
            (0 * model.x.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        held = optimizer.session.partitions[0].tiers[0].sync_state["x.0"].numpy().copy()
        laconic.finish(model, optimizer)
        return held, model.x.detach().numpy()

    results = laconic.simulate(body, 4).results
    assert np.abs(np.mean([held for held, _ in results], axis=0) - starts.mean(axis=0)).max() > 0.01
    for _, ended in results:
        np.testing.assert_allclose(ended, starts.mean(axis=0), atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("sgp", check=3)
def test_doubly_stochastic_weights_make_it_dpsgd_that_mixes_after_the_step() -> None:
    targets = draws(6, DIMENSION)
    for graph in ("one_peer_exponential", "torus"):
        seen = walk(f"sgp / {graph}", 6, 12, targets=targets, look=mass)
        weights = mixing_of(f"sgp / {graph}", 6)
        for step in range(12):
            assert all(own == pytest.approx(1, abs=1e-12) for *_, own in seen.seen[step])
            expected = weights.at(step) @ (seen.x[step] - 0.1 * seen.gradients[step])
            np.testing.assert_allclose(seen.x[step + 1], expected, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("sgp", check=3)
def test_a_straggler_delays_whom_it_sends_to_and_not_everyone() -> None:
    draw = np.random.default_rng(0)
    trace = tuple(tuple(6.0 if k == late else 1.0 for k in range(8)) for late in draw.integers(0, 8, 30))
    setting = {"network": Network.flat(8, 8e3), "compute": Compute(0.05, 0.05, trace=trace)}
    ends = {}
    for words in ("bsp", "sgp", "sgp(1)"):
        seen = walk(words, 8, 30, look=lambda tier: tier.worker.clock_seconds(), **setting)
        ends[words] = np.array(seen.seen)[-1].max() - np.array(seen.seen)[0].min()
    assert ends["sgp(1)"] < ends["sgp"] < ends["bsp"]


@pytest.mark.long
def test_momentum_stays_at_home_and_training_converges() -> None:
    targets = draws(4, DIMENSION)
    seen = walk("sgp", 4, 60, sgd(0.05, 0.8), targets=targets)
    assert np.abs(seen.mean[-1] - targets.mean(axis=0)).max() < 0.02
    adam = walk("sgp(1)", 4, 60, lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.0), targets=targets)
    assert np.abs(adam.mean[-1] - targets.mean(axis=0)).max() < 0.5
