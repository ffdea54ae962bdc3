"""The number of local steps that a bound advises within a budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from laconic.federated.local import Trainer
from laconic.federated.partition import by_label, iid
from laconic.federated.population import Population
from laconic.federated.rules.adaptive_fl import Constants, best_steps
from laconic.federated.simulate import simulate
from tests.data import cases
from tests.federated.digits import digits


@pytest.mark.evidence("adaptive_fl", recording="adaptive_fl.json")
@pytest.mark.parametrize("case", range(6))
def test_the_steps_are_those_of_the_authors_program(case: int) -> None:
    recorded = cases("adaptive_fl.json")[case]
    sizes = np.array(recorded["data_sizes"]) / sum(recorded["data_sizes"])
    hold, held = recorded["moving_average_hold"], None
    for number in recorded["rounds"]:
        gradients = np.array(number["grad_i"])
        apart = np.linalg.norm(gradients - sizes @ gradients, axis=1)
        now = np.array([sizes @ number["rho_i"], sizes @ number["beta_i"], sizes @ apart])
        held = now if held is None else hold * held + (1 - hold) * now
        np.testing.assert_allclose(held, [number["rho"], number["beta"], number["delta"]], rtol=1e-6, atol=1e-9)
        costs = recorded["local_step_s"], recorded["aggregation_s"]
        budget = recorded["budget_s"] + (0 if number["keep_best_loss_model"] else sum(costs))
        most = min(10 * number["tau_previous"], 100)
        found = best_steps(Constants(*held), recorded["step_size"], recorded["phi"], *costs, budget, most)
        assert found == number["tau_new"]


@pytest.mark.technique("adaptive_fl", check=1)
def test_drift_begins_with_the_second_step_and_decides_the_number() -> None:
    some = Constants(rho=1.0, beta=2.0, delta=1.0)
    drifts = [some.drift(steps, 0.01) for steps in range(60)]
    assert drifts[0] == 0.0 and drifts[1] == pytest.approx(0, abs=1e-12)
    assert all(b > a for a, b in pairwise(drifts[1:]))
    assert best_steps(Constants(1.0, 2.0, 0.0), 0.01, 0.025, 0.01, 0.1, 15.0, 73) == 73
    assert best_steps(some, 0.01, 0.025, 0.01, 0.0, 15.0, 100) == 1


@pytest.mark.technique("adaptive_fl", check=2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("budget", [3.0, 11.0])
def test_the_budget_is_kept_and_no_further_round_fits(seed: int, budget: float) -> None:
    """Of clients with unequal speeds and links."""
    draw = np.random.default_rng(seed)
    shards = by_label(digits().labels.numpy(), 5, 2, seed)
    clients = Population(shards, 10 ** draw.uniform(-5, -4, 5), 10 ** draw.uniform(5.5, 6, 5), 1e7)
    outcome = simulate(digits(), clients, f"adaptive_fl(5, budget={budget})", 10_000, rate=0.1, seed=seed)
    assert outcome.seconds <= budget and len(outcome.steps) > 3
    each = outcome.server.kept["each"]
    assert outcome.seconds + max(step + rest for step, rest in each) > budget


def test_the_model_with_the_least_loss_comes_out() -> None:
    """At a rate at which losses rise again, an early model is better than the last."""
    clients = Population(iid(1437, 3), 1e-5, 1e8, 1e8)
    outcome = simulate(digits(), clients, "adaptive_fl(3, budget=2.0, longest=1)", 30, rate=40.0)
    trainer, everything = Trainer(digits(), 0), np.arange(1437)
    best, last = (trainer.gradient(at, everything)[1] for at in (outcome.parameters, outcome.server.parameters))
    assert best < last and best == pytest.approx(outcome.server.kept["least"], rel=1e-4)
    assert torch.isfinite(outcome.parameters).all()
