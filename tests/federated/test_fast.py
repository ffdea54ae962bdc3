"""FAST: budgets that hold for every device, equal decisions for equal devices, and useful data that is drawn more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from laconic.federated.local import Trainer
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.partition import Shards, by_label
from laconic.federated.population import Population
from laconic.federated.rule import Report, Server
from laconic.federated.rules.fast import Decisions, Fast
from laconic.federated.simulate import simulate
from tests.federated.digits import digits


def decisions(outcome: FederatedOutcome) -> Decisions:
    found: Decisions = outcome.server.kept["decisions"]
    return found


def unequal(seed: int, clients: int = 8) -> Population:
    """Devices whose speeds and links spread over a factor of ten."""
    draw = np.random.default_rng(seed)
    shards = by_label(digits().labels.numpy(), clients, 2, seed)
    return Population(shards, 1e-4 * 10 ** draw.uniform(0, 1, clients), 1e6 * 10 ** draw.uniform(0, 1, clients), 1e7)


@pytest.mark.technique("fast", check=1)
@pytest.mark.parametrize(("seconds", "effort"), [(3.0, 2.0), (30.0, 1.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_budgets_hold_within_a_rounds_cost_for_every_device(seed: int, seconds: float, effort: float) -> None:
    """Training ends when the time is over, or when the effort of all devices is spent."""
    clients, spent = unequal(seed), []
    outcome = simulate(
        digits(), clients, f"fast(8, seconds={seconds}, effort={effort}, rounds=20)", 400, rate=0.1, seed=seed,
        progress=lambda step: spent.append(step.seconds),
    )  # fmt: skip
    rounds = np.diff([0.0, *spent])
    found = decisions(outcome)
    assert len(rounds) < 400 and outcome.seconds <= seconds + rounds[-1]
    assert (outcome.seconds >= seconds) == (seconds < 30) and (found.effort >= effort).all() == (seconds == 30)
    assert found.seconds == pytest.approx(outcome.seconds)
    longest_round = np.array([clients.train_seconds(c, len(clients.shards[c]) * 20) for c in range(8)])
    assert (found.effort <= effort + np.minimum(longest_round, rounds.max())).all()


def test_a_device_without_effort_left_takes_part_no_more() -> None:
    """The slow device spends its budget first; the run ends when the other has spent its own."""
    clients = Population(Shards.of([np.arange(100), np.arange(100, 200)]), sample_seconds=[1e-3, 1e-2])
    outcome = simulate(digits(), clients, "fast(2, seconds=1e6, effort=1, step=0)", 200, rate=0.1)
    took_part = [sum(c in step.clients for step in outcome.steps) for c in range(2)]
    assert took_part == [4, 1], "5 steps of 50 samples: 0.25 and 2.5 seconds a round"


def scattered(self: Fast, start: Any, population: Population, setting: Any) -> Server:
    """Decisions that are far apart."""
    draw, n = np.random.default_rng(5), len(population)
    first = Decisions(draw.uniform(0.1, 1, n), draw.uniform(1, 30, n), np.zeros(n), np.zeros(n), np.zeros(n))
    return Server(start.clone(), kept={"decisions": first})


@pytest.mark.technique("fast", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_identical_devices_come_to_equal_decisions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From decisions that are far apart; every device holds the same samples, and draws others of them."""
    monkeypatch.setattr(Fast, "begin", scattered)
    clients = Population(Shards.of([np.arange(40)] * 3), sample_seconds=5e-3)
    outcome = simulate(digits(), clients, "fast(3)", 60, rate=0.1, seed=seed)
    found = decisions(outcome)
    for values in (found.fraction, found.steps):
        assert values.max() / values.min() < 1.05
    assert 1 < found.steps[0] < 20 and 0.05 < found.fraction[0] < 1, "not by their bounds"


def report(client: int, loss: float, seconds: float) -> Report:
    return Report(client, 0, 100, {"change": torch.zeros(1)}, {"loss": loss, "drawn": 50.0}, seconds, seconds)


def test_devices_that_fit_worse_draw_more_and_slow_ones_do_less() -> None:
    rule = Fast(4)
    ones = np.ones(4)
    now = Decisions(0.5 * ones, 5 * ones, 0 * ones, 0 * ones, 0 * ones)
    for _ in range(40):
        work = now.fraction * now.steps
        pace = np.array([0.1, 0.1, 0.1, 1.0])
        losses = (3.0, 1.0, 2.0, 2.0)
        now = rule.moved(now, [report(c, losses[c], float(pace[c] * work[c])) for c in range(4)])
    assert now.fraction[0] > now.fraction[2] > now.fraction[1]
    assert now.steps[3] < 0.5 * now.steps[2]
    assert now.time_price[3] > 0


def test_without_steps_of_its_own_it_is_federated_averaging() -> None:
    """All samples, one step: the weighted mean of gradients."""
    clients = Population(Shards.of([np.arange(30), np.arange(30, 100)]))
    ours = simulate(digits(), clients, "fast(2, fraction=1, steps=1, step=0, dual=0)", 3, rate=0.1)
    theirs = simulate(digits(), clients, "fedavg(2, batch=0)", 3, rate=0.1)
    torch.testing.assert_close(ours.parameters, theirs.parameters)
    assert ours.seconds == pytest.approx(theirs.seconds, rel=0.01)


def redundant(seed: int) -> Population:
    """Five devices with equal samples of two digits, and five with a few samples of all others each."""
    labels, draw = digits().labels.numpy(), np.random.default_rng(seed)
    common = np.flatnonzero(np.isin(labels, (0, 1)))
    others = draw.permutation(np.flatnonzero(labels > 1))[:500]
    return Population(Shards.of([*[common] * 5, *np.array_split(others, 5)]), sample_seconds=1e-4, step_seconds=1e-3)


@pytest.mark.long
@pytest.mark.technique("fast", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_is_lower_than_with_any_fixed_steps_and_uniform_sampling(seed: int) -> None:
    """Within the same seconds, on images of all digits."""

    def loss(text: str) -> float:
        outcome = simulate(digits(), redundant(seed), text, 2000, rate=0.1, seed=seed)
        return Trainer(digits(), seed).evaluate(outcome.parameters)["loss"]

    fixed = [loss(f"fast(10, seconds=5, step=0, dual=0, steps={steps})") for steps in (1, 5, 20)]
    assert loss("fast(10, seconds=5)") < min(fixed)
