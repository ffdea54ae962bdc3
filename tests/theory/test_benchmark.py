"""The strategy matrix: four rules on one task, all treated alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.theory.benchmark import Point, table, uniform_benchmark
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync.digits import data, network

FOUR = ("bsp", "asp / none / ps", "local(4)", "local(20)")
"""BSP, ASP, local SGD, and FedAvg with all clients: a local epoch of 4 workers is 20 steps."""


def train(strategy: str, workers: int, rate: float, seed: int, steps: int = 120, batch: int = 16) -> Sequence[Point]:
    """Digits on virtual workers whose steps take random times; the first worker looks at its model now and then."""
    images, labels, test_images, test_labels = data()
    curve: list[Point] = []

    def body() -> None:
        rank = laconic.rank()
        mine, draw = torch.arange(rank, len(labels), workers), torch.Generator().manual_seed(1000 * seed + rank)
        model: Any = network(seed)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), strategy)
        worker: Any = connect()
        before = worker.ledger.sent_bytes(Kind.PAYLOAD)
        for step in range(1, steps + 1):
            chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and step % 20 == 0:
                with torch.no_grad():
                    right = (model(test_images).argmax(1) == test_labels).float().mean().item()
                sent = worker.ledger.sent_bytes(Kind.PAYLOAD) - before
                curve.append(Point(step, sent, worker.clock_seconds(), 100 * right))

    compute = Compute(0.01, 0.02, 0.001, law="exponential", seed=seed)
    laconic.simulate(body, workers, Network.flat(workers, 1e9, 1e-4), compute, seed)
    return curve


@pytest.mark.long
@pytest.mark.technique("uniform_benchmark", check=1)
def test_four_strategies_end_within_two_points_at_four_workers() -> None:
    lines = uniform_benchmark(partial(train, steps=200), FOUR, workers=(4,), rates=(0.25, 0.5), seeds=(0, 1, 2))
    ends = [line.accuracy for line in lines]
    assert len(ends) == 4 and all(len(line.finals) == 3 for line in lines)
    assert max(ends) - min(ends) <= 2, table(lines, 85)
    assert min(ends) >= 90, "they have learnt something to agree on"


@pytest.mark.long
@pytest.mark.technique("uniform_benchmark", check=2)
def test_asynchronous_ends_spread_wider_at_sixteen_workers() -> None:
    """Over six seeds, at the rate that is best for both of those that were tried (0.125, 0.25, 0.5 and 1; at each of
    them it holds)."""
    bsp, asp = uniform_benchmark(partial(train, steps=100), FOUR[:2], workers=(16,), rates=(1.0,), seeds=range(6))
    assert asp.spread > bsp.spread, table([bsp, asp], 85)


def known(strategy: str, workers: int, rate: float, seed: int) -> Sequence[Point]:
    """Curves that are given beforehand: `good` is best at rate 2, `bad` at rate 1, and 3 goes astray."""
    best = {"good": 2.0, "bad": 1.0}[strategy]
    end = float("nan") if rate == 3.0 else 90.0 - 10 * abs(rate - best) - workers + seed % 10
    return [Point(10 * k, 1e6 * k * workers, 0.5 * k, end * k / 4) for k in range(1, 5)]


def test_every_line_has_its_own_best_rate_and_all_seeds() -> None:
    asked: list[tuple[str, int, float, int]] = []

    def noted(*what: Any) -> Sequence[Point]:
        asked.append(what)
        return known(*what)

    lines = uniform_benchmark(noted, ["good", "bad"], workers=(2, 8), rates=(1.0, 2.0, 3.0), seeds=(1, 2, 3))
    assert [(line.strategy, line.workers, line.rate) for line in lines] == [
        ("good", 2, 2.0), ("bad", 2, 1.0), ("good", 8, 2.0), ("bad", 8, 1.0),
    ]  # fmt: skip
    assert len(asked) == 4 * (3 + 3), "the same search for all"
    assert lines[0].finals == (89.0, 90.0, 91.0) and lines[0].accuracy == 90.0 and lines[0].spread == 1.0


def test_the_table_says_what_a_target_takes() -> None:
    lines = uniform_benchmark(known, ["good", "bad"], workers=(2,), rates=(2.0,), seeds=(1, 2))
    assert lines[0].to(60) == Point(30, 6e6, 1.5, 60) and lines[1].to(85) is None
    head, good, bad = table(lines, 85).splitlines()
    assert good.split() == ["good", "2", "2", "89.50", "0.71", "40", "8", "2"]
    assert bad.split() == ["bad", "2", "2", "79.50", "0.71", "–", "–", "–"]
    assert len({len(line) for line in (head, good, bad)}) == 1


def test_rates_are_not_chosen_on_reported_seeds() -> None:
    with pytest.raises(LaconicError, match="choose"):
        uniform_benchmark(known, ["good"], rates=(1.0, 2.0), seeds=(0, 1), choosing_seeds=(1,))


@pytest.mark.long
def test_one_training_says_when_and_in_how_many_bytes() -> None:
    """Of the task itself: a quarter of the exchanges, a quarter of the bytes, and time goes on."""
    every, seldom = (train(strategy, 2, 0.3, 0, steps=40) for strategy in ("bsp", "local(4)"))
    assert [point.iterations for point in every] == [20, 40]
    assert every[-1].sent_bytes == pytest.approx(4 * seldom[-1].sent_bytes, rel=0.01)
    assert 0 < seldom[0].seconds < seldom[-1].seconds < every[-1].seconds
