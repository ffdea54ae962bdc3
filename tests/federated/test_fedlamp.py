"""Steps and shares with which all clients take equally long, within budgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.federated.partition import by_quantity, iid
from laconic.federated.population import Population
from laconic.federated.rules.fedlamp import RATIOS, Costs, Found, adapted
from laconic.federated.simulate import simulate
from tests.federated.digits import digits
from tests.federated.racing import seconds_to


def unequal(seed: int, clients: int = 8) -> Population:
    """Return clients whose speeds and links are spread 1:8."""
    draw = np.random.default_rng(seed)
    speeds, links = (draw.permutation(8 ** np.linspace(0, 1, clients)) for _ in range(2))
    return Population(iid(1437, clients, seed), 3e-4 * speeds, 3e5 * links, 1e7)


@pytest.mark.technique("fedlamp", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("steps", "ratio"), [(10, 1.0), (20, 0.3), (15, 0.03)])
def test_times_are_equal_within_a_step(seed: int, steps: int, ratio: float) -> None:
    draw = np.random.default_rng(seed)
    step, whole = draw.permutation(8 ** np.linspace(0, 1, 20)), draw.permutation(8 ** np.linspace(0, 1, 20))
    costs = Costs(draw.uniform(0, 1, 20), step, whole, 100.0, 5000.0)
    plan = adapted(costs, steps, ratio, 200, 20)
    assert (plan.steps > 1).all() and (plan.steps < 200).all()
    longest = plan.seconds.max()
    assert (plan.seconds + step >= longest - 1e-9).all()
    assert steps - 1 < plan.steps.mean() <= steps and plan.ratios.mean() == pytest.approx(ratio)
    np.testing.assert_allclose(plan.seconds, costs.fixed + plan.steps * step + plan.ratios * whole)
    if ratio < 1:
        assert np.corrcoef(np.log(whole), np.log(plan.ratios))[0, 1] < -0.9  # slow links send less


@pytest.mark.long
@pytest.mark.technique("fedlamp", check=1)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("clients", [8, 5])
@pytest.mark.parametrize("compression", ["topk(0.1)+ef", "none"])
def test_budgets_are_never_exceeded(seed: int, clients: int, compression: str) -> None:
    """Whichever is spent first; the run ends by itself."""
    people = unequal(seed)
    plain = 4 * (64 * 32 + 32 + 32 * 10 + 10) * clients
    for traffic, compute in ((5.5 * plain, 1e9), (1e12, 0.7)):
        text = f"fedlamp({clients}, batch=20, traffic={traffic}, compute={compute}) / {compression}"
        outcome = simulate(digits(), people, text, 400, rate=0.1, seed=seed)
        assert 1 <= len(outcome.steps) < 400 and outcome.server.kept["plan"] is None
        spent = outcome.server.kept["spent"]
        assert outcome.up_bytes.sum() <= spent[0] <= traffic and spent[1] <= compute


@pytest.mark.parametrize("seed", [0, 1])
def test_a_plan_is_what_happens(seed: int) -> None:
    """The round lasts as long as the plan says, and sends no more than that: a last batch may be smaller."""
    people = unequal(seed)
    one, two = (
        simulate(digits(), people, "fedlamp(8, batch=20) / topk(0.1)+ef", rounds, rate=0.1, seed=seed)
        for rounds in (3, 4)
    )
    plan, lasted = one.server.kept["plan"], two.seconds - one.seconds
    slowest = int(np.argmax(plan.seconds))
    step = 20 * float(np.asarray(people.sample_seconds)[slowest])
    assert plan.seconds.max() - step <= lasted <= plan.seconds.max() * 1.001


@pytest.mark.technique("fedlamp", check=2)
@pytest.mark.parametrize("compression", ["topk(0.1)+ef", "none"])
def test_equal_clients_have_equal_plans(compression: str) -> None:
    people = Population(iid(1434, 6), 1e-3, 1e5, 1e6)
    outcome = simulate(digits(), people, f"fedlamp(6, batch=20) / {compression}", 5, rate=0.1)
    plan = outcome.server.kept["plan"]
    assert len(set(plan.steps.tolist())) == 1 and np.ptp(plan.ratios) < 1e-12
    assert compression != "none" or (plan.ratios == 1).all()


@pytest.mark.technique("fedlamp", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_step_without_compression_is_fedsgd(seed: int) -> None:
    people = Population(by_quantity(600, 5, 2.0, seed), 8 ** np.linspace(-3, -2, 5), 1e6)
    ends = [
        simulate(digits(), people, text, 4, rate=0.2, seed=seed).parameters
        for text in ("fedlamp(5, batch=600, steps=1, longest=1)", "fedavg(5, batch=0)")
    ]
    assert torch.equal(*ends)


def test_more_steps_and_smaller_shares_harm_more() -> None:
    found = Found(0.1, 0.5, (1.0, 0.95, 0.8, 0.5))
    assert found.harm(1, 1.0) == 0
    for steps in (1, 4, 20):
        each = [found.harm(steps, ratio) for ratio in RATIOS]
        assert each == sorted(each) and found.harm(steps + 1, 0.3) > found.harm(steps, 0.3)
    assert found.harm(7, 1.0) == pytest.approx(0.01 * 48 * 0.5)


@pytest.mark.long
@pytest.mark.technique("fedlamp", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_accuracy_is_reached_sooner_than_with_the_best_number_of_epochs(seed: int) -> None:
    """By more than 30 %, of 20 clients whose speeds and links are spread 1:8, each with the best of three rates."""
    rates, longest = (0.2, 0.4, 0.8), 60
    fixed = [f"fedavg(20, batch=10, epochs={epochs})" for epochs in (2, 3, 1, 5)]
    best = seconds_to(0.9, digits(), unequal(seed, 20), fixed, rates, seed, longest)
    ours = seconds_to(0.9, digits(), unequal(seed, 20), ["fedlamp(20) / topk(0.1)+ef"], rates, seed, longest)
    assert ours <= 0.6 * best < np.inf, "if all have equal steps and shares, it is 0.60 to 0.71"
