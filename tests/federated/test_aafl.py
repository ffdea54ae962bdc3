"""Merging with a share of the clients, within budgets, and what is learned of shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from laconic.errors import StrategyError
from laconic.federated.partition import by_quantity, iid
from laconic.federated.population import Population
from laconic.federated.rules.aafl import SHARES, Learned
from laconic.federated.simulate import simulate
from tests.federated.digits import digits

SIZE = 4 * (64 * 32 + 32 + 32 * 10 + 10)


def unequal(seed: int, clients: int = 11) -> Population:
    """Return clients with unequal data, whose speeds are spread 1:10."""
    draw = np.random.default_rng(seed)
    return Population(by_quantity(700, clients, 2.0, seed), 1e-3 * 10 ** draw.uniform(0, 1, clients), 1e6, 1e7)


@pytest.mark.technique("aafl", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_all_clients_it_is_fedavg(seed: int) -> None:
    ends = [
        simulate(digits(), unequal(seed), text, 4, rate=0.1, seed=seed) for text in ("aafl(11, alpha=1)", "fedavg(11)")
    ]
    torch.testing.assert_close(ends[0].parameters, ends[1].parameters, rtol=0, atol=1e-6)
    assert ends[0].seconds == pytest.approx(ends[1].seconds, rel=1e-3)


@pytest.mark.technique("aafl", check=1)
@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.9])
def test_a_step_merges_that_share_of_the_clients_rounded_up(alpha: float) -> None:
    outcome = simulate(digits(), unequal(2), f"aafl(11, alpha={alpha}, batch=50)", 7, rate=0.1)
    assert {len(step.clients) for step in outcome.steps} == {math.ceil(alpha * 11)}
    started = int(outcome.down_bytes.sum()) // SIZE
    merged_before_the_last = sum(len(step.clients) for step in outcome.steps[:-1])
    assert started == 11 + merged_before_the_last  # only those who were merged are sent the new model
    assert max(age for step in outcome.steps for age in step.staleness) > 0


@pytest.mark.technique("aafl", check=2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("alpha", [0, 0.4])
def test_budgets_are_never_exceeded_and_nothing_more_fits(seed: int, alpha: float) -> None:
    people = unequal(seed)
    for budget in ("seconds=4.5", f"traffic={20.5 * SIZE}"):
        outcome = simulate(digits(), people, f"aafl(11, alpha={alpha}, batch=50, {budget})", 500, rate=0.1, seed=seed)
        spent = sum(len(step.clients) for step in outcome.steps) * SIZE
        assert 0 < len(outcome.steps) < 500
        if budget.startswith("seconds"):
            assert outcome.seconds <= 4.5
            needed = 2 if not alpha else 5
            assert np.sort(outcome.server.kept["due"])[needed - 1] > 4.5
        else:
            assert spent <= 20.5 * SIZE < spent + (2 if not alpha else 5) * SIZE


@pytest.mark.parametrize("seed", [0, 1])
def test_the_server_knows_when_reports_arrive(seed: int) -> None:
    """The end of a step is the time at which so many of those at work were due."""
    people = unequal(seed)
    few, more = (simulate(digits(), people, "aafl(11, alpha=0.4, batch=50)", n, rate=0.1, seed=seed) for n in (5, 6))
    assert more.seconds == pytest.approx(np.sort(few.server.kept["due"])[4], rel=1e-6)


def test_every_share_is_tried_and_the_best_is_taken() -> None:
    learned, draw = Learned(), np.random.default_rng(0)
    rewards = (0.1, 0.2, 0.9, 0.3, 0.2)
    order = []
    for _ in range(20):
        share = learned.ranked(0.0, draw)[0]
        order.append(share)
        learned = learned.after(share, rewards[share])
    assert sorted(order[:5]) == list(range(5)) and set(order[5:]) == {2} and len(SHARES) == 5
    assert {learned.ranked(1.0, draw)[0] for _ in range(60)} == set(range(5))


def test_some_clients_alone_are_refused() -> None:
    with pytest.raises(StrategyError, match="write aafl"):
        simulate(digits(), Population(iid(100, 4)), "aafl(3)", 1, rate=0.1)
