"""NetMax: policies that keep what they promise, and workers that pull by them without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import laconic
from laconic.network.network_tree import Level, Network
from laconic.real.connect import connect
from laconic.sync.netmax import Monitor
from laconic.topology.peer_policy import PeerPolicy, best_policy, second_eigenvalue
from laconic.virtual.compute import Compute
from laconic.worker import ActorMessage
from tests.sync.gossiping import DIMENSION, Array, draws, sgd, walk

Pairs = tuple[tuple[int, int], ...]
COMPUTING = 0.004


def everyone(size: int) -> Pairs:
    return tuple((a, b) for a in range(size) for b in range(a + 1, size))


def ring(size: int) -> Pairs:
    return tuple((i, (i + 1) % size) for i in range(size))


def taking(size: int, seconds: float = 0.01, slow: dict[tuple[int, int], float] | None = None) -> Array:
    times = np.full((size, size), seconds)
    np.fill_diagonal(times, COMPUTING)
    for (a, b), longer in (slow or {}).items():
        times[a, b] = times[b, a] = longer
    return times


@pytest.mark.technique("netmax", check=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("edges", [everyone(5), ring(6), (*ring(7), (0, 3), (2, 5))])
def test_policies_keep_bounds_and_let_all_iterate_equally_often(edges: Pairs, seed: int) -> None:
    size = 1 + max(map(max, edges))
    draw = np.random.default_rng(seed)
    times = taking(size, slow={edge: 0.01 * 10 ** draw.uniform(0, 1) for edge in edges})
    policy = best_policy(times, edges)
    p = policy.probabilities
    assert np.isfinite(policy.seconds), "one was found"
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-9)
    for a, b in edges:
        assert min(p[a, b], p[b, a]) >= 2 * policy.strength - 1e-9
    assert (p > 0).sum() <= 2 * len(edges) + size
    np.testing.assert_allclose((times * p).sum(axis=1), policy.iteration_seconds, atol=1e-6)


@pytest.mark.technique("netmax", check=2)
@pytest.mark.parametrize("edges", [everyone(6), ring(5)])
def test_equal_links_are_drawn_equally_and_a_slow_one_less(edges: Pairs) -> None:
    size = 1 + max(map(max, edges))
    even = best_policy(taking(size), edges).probabilities
    degree = 2 * len(edges) / size
    for a, b in edges:
        assert even[a, b] == pytest.approx(1 / degree, abs=0.1 / degree)
    slow = best_policy(taking(size, slow={edges[0]: 0.03}), edges).probabilities
    a, b = edges[0]
    assert slow[a, b] < 0.9 * even[a, b] and slow[b, a] < 0.9 * even[b, a]


def test_links_that_take_equally_long_are_drawn_equally() -> None:
    """Also where a slow link elsewhere leaves a choice."""
    row = best_policy(taking(6, slow={(0, 1): 0.1}), everyone(6)).probabilities[3]
    np.testing.assert_allclose(row[[0, 1, 2, 4, 5]], row[0], atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_eigenvalue_is_that_of_the_mean_of_all_moves(seed: int) -> None:
    size, strength = 5, 0.08
    p = np.random.default_rng(seed).dirichlet(np.full(size, 5.0), size=size)
    total = np.zeros((size, size))
    for i, m in np.ndindex(size, size):
        move = np.eye(size)
        move[i, i], move[i, m] = 1 - strength / p[i, m], strength / p[i, m]
        total += p[i, m] / size * ((move.T @ move) if i != m else np.eye(size))
    assert second_eigenvalue(p, strength) == pytest.approx(np.linalg.eigvalsh(total)[-2], abs=1e-12)


def test_the_monitor_answers_with_a_policy_when_all_have_reported() -> None:
    monitor = Monitor(3, everyone(3))
    times = taking(3, slow={(0, 1): 0.05})

    def report(worker: int) -> list[float]:
        fields = {"worker": worker, "times": times[worker].tolist()}
        found = monitor.write(worker, ActorMessage("report", fields)).fields["probabilities"]
        assert isinstance(found, list)
        return [float(x) for x in found]

    assert report(0) == [0, 0.5, 0.5] and report(0) == [0, 0.5, 0.5] and report(1) == [0.5, 0, 0.5]
    last = report(2)
    assert report(0)[1] < 0.5 and sum(last) == pytest.approx(1)
    again = Monitor(3, everyone(3))
    again.restore(monitor.state())
    np.testing.assert_array_equal(again.policy.probabilities, monitor.policy.probabilities)


def test_workers_too_unequal_for_one_pace_choose_evenly() -> None:
    times = taking(4)
    times[0] = 1.0
    np.testing.assert_array_equal(
        best_policy(times, everyone(4)).probabilities, PeerPolicy.uniform(4, everyone(4)).probabilities
    )


def drawn(tier: Any) -> list[float]:
    found: list[float] = tier.sync_state["probabilities"].tolist()
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_workers_learn_which_links_are_slow(seed: int) -> None:
    """On virtual links: the pair whose own way is slower is drawn less by both, and models agree all the same."""
    network = Network(4, (Level(1, 1e6),), pairs={(1, 2): 2e5})
    compute = Compute(forward_seconds=0.002, slowness=(1.0, 1.1, 1.0, 0.9))
    seen = walk("netmax(period=10)", 4, 30, sgd(0.0), starts=draws(4, DIMENSION, seed=seed), look=drawn,
                network=network, compute=compute)  # fmt: skip
    last = seen.seen[-1]
    assert last[1][2] < 0.3 and last[2][1] < 0.3 and seen.seen[0][1][2] == pytest.approx(1 / 3)
    assert seen.disagreement[-1] < 0.05 * seen.disagreement[0]


def test_a_slow_worker_delays_nobody() -> None:
    def seconds(slow: float) -> list[float]:
        compute = Compute(forward_seconds=0.01, slowness=(1.0, 1.0, 1.0, slow))

        def body() -> float:
            model: torch.nn.Module = torch.nn.Linear(3, 3)
            model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "netmax(1000)")
            for _ in range(20):
                model(torch.ones(3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return connect().clock_seconds()

        return list(laconic.simulate(body, 4, Network.flat(4, 1e6, 1e-4), compute).results)

    alike, with_slow = seconds(1.0), seconds(10.0)
    assert with_slow[3] > 9 * alike[3]
    assert all(with_slow[rank] < alike[rank] / 0.9 for rank in range(3))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.long
def test_every_neighbour_pulls_equally_however_rarely_it_is_drawn(seed: int) -> None:
    """Different targets, and a pair with a slow way: the mean of all models still ends near the mean of all targets."""
    network = Network(4, (Level(1, 1e6),), pairs={(1, 2): 2e5})
    goals = draws(4, DIMENSION, seed=seed)
    seen = walk("netmax(period=40)", 4, 160, sgd(0.1), targets=goals, network=network, compute=Compute(0.002))
    late = seen.mean[-60:].mean(axis=0)
    assert np.linalg.norm(late - goals.mean(axis=0)) < 0.15 * np.linalg.norm(goals - goals.mean(axis=0))
