"""The number of local steps that a bound advises within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laconic.federated.local import Trainer
from laconic.federated.partition import Shards, by_label, dirichlet, iid
from laconic.federated.population import Population
from laconic.federated.rule import Report, Server
from laconic.federated.rules.adaptive_fl import AdaptiveFL, Constants, best_steps
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.registry import knob
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


@dataclass(frozen=True, eq=False)
class SmoothSVM:
    """Is a digit odd, of five digits: the mean squared hinge loss, with a small penalty of the weights."""

    inputs: Tensor
    digits: Tensor

    @classmethod
    def make(cls) -> SmoothSVM:
        few = digits().labels < 5
        return cls(digits().inputs[few], digits().labels[few])

    def build(self, seed: int) -> nn.Module:
        model = nn.Linear(self.inputs.shape[1], 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        margins = model(self.inputs[samples])[:, 0] * (2.0 * (self.digits[samples] % 2) - 1)
        return (1 - margins).clamp(min=0).square().mean() / 2 + 5e-4 * sum(p.square().sum() for p in model.parameters())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Fixed(AdaptiveFL):
    """The same number of steps in all rounds, whatever the bound advises."""

    always: int = knob(1, low=1, doc="local steps of a round")

    def init(self, start: Tensor, population: Population) -> Server:
        server = super().init(start, population)
        return replace(server, kept={**server.kept, "steps": self.always})

    def _advised(self, reports: Sequence[Report], kept: dict[str, Any]) -> int:
        return self.always


def split(how: str, labels: np.ndarray, seed: int) -> Shards:
    """Five clients: with like data, with more of some digits, two with all of two digits and three with one each, and
    with one digit each."""
    drawn = np.random.default_rng(seed).permutation(len(labels))
    halves = [*np.array_split(drawn[labels[drawn] < 2], 2), *(drawn[labels[drawn] == digit] for digit in (2, 3, 4))]
    return {
        "even": lambda: iid(len(labels), 5, seed),
        "drawn": lambda: dirichlet(labels, 5, 0.5, seed),
        "half": lambda: Shards.of(halves),
        "one": lambda: Shards.of([drawn[labels[drawn] == digit] for digit in range(5)]),
    }[how]()


@pytest.mark.long
@pytest.mark.technique("adaptive_fl", check=3)
@pytest.mark.parametrize(
    ("how", "seed"), [("even", 0), ("drawn", 0), ("drawn", 1), ("drawn", 2), ("half", 0), ("half", 1), ("one", 0)]
)
def test_the_loss_within_a_budget_is_near_that_of_the_best_fixed_number(how: str, seed: int) -> None:
    """With the authors' kind of model, constant, rate and budget: a step takes 13 ms and the messages of a round ten
    times as long, whoever chooses its steps. Samples are not drawn: only the split has a seed."""
    task = SmoothSVM.make()
    shards = split(how, task.digits.numpy(), seed)
    bits = 8 * 4 * 65 * 3 / 0.13
    clients = Population(shards, 0.013 / float(shards.sizes.mean()), bits, bits)

    def loss(rule: AdaptiveFL) -> float:
        outcome = simulate(task, clients, FederatedStrategy(rule), 10_000, rate=0.01, seed=seed)
        return Trainer(task, seed).gradient(outcome.parameters, np.arange(len(task.digits)))[1]

    fixed = [loss(Fixed(clients=5, budget=15.0, always=steps)) for steps in (1, 3, 10, 30, 100)]
    assert loss(AdaptiveFL(clients=5, budget=15.0)) <= 1.1 * min(fixed) < 1.1 * fixed[0]
