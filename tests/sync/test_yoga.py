"""YOGA: a greedy choice within budgets, the mean of everybody where these are wide, and what pulling layers saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Level, Network
from laconic.real.connect import connect
from laconic.sync.yoga import layers_of, pull_scores
from laconic.topology.max_match import max_match
from laconic.worker import Kind
from tests.sync.digits import data, network
from tests.sync.gossiping import of_classes


@pytest.mark.technique("yoga", check=2)
@pytest.mark.parametrize("seed", range(6))
def test_pulls_are_taken_best_first_until_none_fits(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 5, (5, 5, 3)).astype(float)
    scores[np.eye(5, dtype=bool)] = -np.inf
    scores[draw.random((5, 5, 3)) < 0.2] = -np.inf
    nbytes, receives, sends = draw.integers(1, 9, 3).tolist(), draw.uniform(0, 30, 5), draw.uniform(0, 30, 5)
    pulls = max_match(scores, nbytes, receives.tolist(), sends.tolist())
    assert [p.score for p in pulls] == sorted((p.score for p in pulls), reverse=True)
    for p in pulls:
        assert p.score == scores[p.receiver, p.peer, p.layer] > -np.inf
        receives[p.receiver] -= nbytes[p.layer]
        sends[p.peer] -= nbytes[p.layer]
    assert min(receives.min(), sends.min()) >= 0
    taken = {(p.receiver, p.peer, p.layer) for p in pulls}
    assert len(taken) == len(pulls) > 0
    for place in np.argwhere(scores > -np.inf).tolist():
        i, j, layer = place
        assert tuple(place) in taken or nbytes[layer] > min(receives[i], sends[j])


def test_a_better_pull_is_not_given_up_for_two_worse_ones() -> None:
    scores = np.full((3, 3, 2), -np.inf)
    scores[0, 1, 0], scores[0, 2, 1], scores[0, 1, 1] = 3.0, 2.0, 1.0
    assert [(p.peer, p.layer) for p in max_match(scores, [4, 3], [6, 0, 0], [9, 9, 9])] == [(1, 0)]
    assert [(p.peer, p.layer) for p in max_match(scores, [4, 3], [8, 0, 0], [9, 3, 9])] == [(2, 1), (1, 1)]


def test_scores_rise_with_everything_that_ranks() -> None:
    """Of three workers, of which the last two are alike for the first but for one thing at a time."""
    speeds, rates = np.ones((3, 2)), np.ones((3, 3))
    sketches, labels = np.zeros((3, 2, 4)), np.array([[4, 0], [4, 0], [4, 0]])
    sketches[1:] = 1.0
    even = pull_scores(speeds, sketches, labels, rates)
    assert np.ptp(even[0, 1:]) == 0
    faster, farther, other, wider = speeds.copy(), sketches.copy(), labels.copy(), rates.copy()
    faster[2, 1], farther[2, 1], other[2], wider[0, 2] = 2.0, 3.0, [1, 3], 5.0
    for changed in (
        pull_scores(faster, sketches, labels, rates),
        pull_scores(speeds, farther, labels, rates),
        pull_scores(speeds, sketches, other, rates),
        pull_scores(speeds, sketches, labels, wider),
    ):
        assert changed[0, 2, 1] > changed[0, 1, 1] and (changed <= 1).all()


def test_a_layer_is_what_a_module_holds() -> None:
    names = [name for name, _ in nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).named_parameters()]
    assert layers_of(names) == [[0, 1], [2, 3], [4, 5]]


def trained(strategy: str, workers: int, steps: int, seed: int = 0, labels: int = 0) -> list[tuple[Tensor, Any]]:
    """Each worker's model at the end, and the payload bytes it had sent and received after every step; the network's
    layers have 96, 36 and 20 bytes."""
    rates = 10 ** np.random.default_rng(seed).uniform(5, 7, (workers, workers))
    links = {(a, b): rates[a, b] for b in range(workers) for a in range(b)}

    def run() -> tuple[Tensor, Any]:
        rank, ledger = laconic.rank(), connect().ledger
        torch.manual_seed(seed)
        model: Any = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.Linear(2, 1))
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.05), strategy)
        if labels:
            laconic.log(**{f"label_{c}": float(c == rank % labels) for c in range(labels)})
        draw, counted = torch.Generator().manual_seed(100 * seed + rank), []
        before = np.array([ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)])
        for _ in range(steps):
            x = torch.randn(8, 5, generator=draw)
            functional.mse_loss(model(x)[:, 0], x.sum(dim=1) * rank / workers).backward()
            optimizer.step()
            optimizer.zero_grad()
            counted.append((ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)))
        return torch.cat([p.detach().flatten() for p in model.parameters()]), np.array(counted) - before

    cities = Network(workers, (Level(1, 1e8),), pairs=links)
    results: list[tuple[Tensor, Any]] = laconic.simulate(run, workers, cities).results
    return results


@pytest.mark.technique("yoga", check=1)
@pytest.mark.parametrize("budget", [0.5, 1.0, 2.3])
@pytest.mark.parametrize(("workers", "seed"), [(4, 0), (7, 1)])
def test_nobody_exceeds_a_budget_in_any_round(budget: float, workers: int, seed: int) -> None:
    ends = trained(f"yoga({budget}, period=2, classes=3)", workers, 8, seed, labels=3)
    model = 4 * ends[0][0].numel()
    for _, counted in ends:
        rounds = np.diff(np.concatenate([np.zeros((1, 2)), counted[1::2]]), axis=0)
        assert (rounds <= budget * model).all()
        np.testing.assert_array_equal(counted[2::2], counted[1:-1:2])
    total = sum(counted[-1] for _, counted in ends)
    assert total[0] == total[1] > 0.5 * 4 * workers * min(budget, workers - 1) * model, "budgets are made use of"


@pytest.mark.technique("yoga", check=1)
@pytest.mark.parametrize(("workers", "seed"), [(3, 0), (5, 1), (6, 2)])
def test_with_room_for_everything_it_averages_with_all_peers(workers: int, seed: int) -> None:
    ours = trained("yoga(1e6, period=3) / complete", workers, 9, seed)
    mean = trained("cooperative_sgd(3) / complete", workers, 9, seed)
    for (x, _), (y, _) in zip(ours, mean, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)


def test_pulls_stay_on_the_topologys_links() -> None:
    ends = trained("yoga(1e6, period=2) / ring", 5, 4)
    model = 4 * ends[0][0].numel()
    assert all((counted[-1] == 2 * 2 * model).all() for _, counted in ends)


def test_classes_that_were_not_logged_are_asked_for() -> None:
    with pytest.raises(StrategyError, match="label_2 was not logged"):
        trained("yoga(period=1, classes=3)", 3, 1, labels=2)


def bytes_to(target: float, strategy: str, seed: int, steps: int = 800, rate: float = 0.1) -> float:
    """The bytes that eight workers, who know two digits each, have sent after the eighth step, when rates have been
    measured, until the mean accuracy of their models is at the target for the first time."""
    images, labels, test_images, test_labels = data()
    order = np.random.default_rng(seed).permutation(np.tile(np.arange(10), 2))[:16].tolist()
    seen: list[list[tuple[float, float]]] = [[] for _ in range(steps)]

    def run() -> None:
        rank, ledger = laconic.rank(), connect().ledger
        known = of_classes(labels, order[2 * rank : 2 * rank + 2])
        draw = torch.Generator().manual_seed(1000 * seed + rank)
        model: Any = network(seed)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), strategy)
        counts = torch.bincount(labels[known], minlength=10).tolist()
        laconic.log(**{f"label_{c}": n for c, n in enumerate(counts)})
        everything = of_classes(test_labels, order)
        for step in range(steps):
            chosen = known[torch.randint(len(known), (16,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 8 == 7:
                with torch.no_grad():
                    right = model(test_images[everything]).argmax(dim=1) == test_labels[everything]
                seen[step].append((ledger.sent_bytes(), right.float().mean().item()))

    laconic.simulate(run, 8)
    rows = [np.array(row) for row in seen if row]
    reached = (float((row - rows[0])[:, 0].sum()) for row in rows if row[:, 1].mean() >= target)
    return next(reached, float("inf"))


@pytest.mark.long
@pytest.mark.technique("yoga", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_layers_reach_an_accuracy_with_fewer_bytes_than_whole_models(seed: int) -> None:
    """Statistics are counted. D-PSGD exchanges whole models on a ring after every step."""
    assert bytes_to(0.8, "yoga(classes=10)", seed, 1600) <= 0.75 * bytes_to(0.8, "dpsgd", seed, 800)
