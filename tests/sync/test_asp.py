"""asp: what staleness is, what waiting nobody saves, and what becomes of a late gradient's rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.errors import StrategyError
from laconic.sync.asp import ASP
from laconic.theory import delay_rates as rates
from laconic.theory.delayed.momentum import first_guess, staleness_law
from laconic.values.cadence import Cadence
from laconic.virtual.compute import Compute, Stragglers
from tests.sync import digits, rounds, serving
from tests.sync.stores import Served

ONE_SECOND = {"forward_seconds": 0.4, "backward_seconds": 0.5, "step_seconds": 0.1}


@pytest.mark.technique("asp", check=1)
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum, rounds.adamw])
def test_one_worker_is_serial_sgd(make: rounds.Make) -> None:
    (run,) = rounds.simulated("asp", 10, make, workers=1)
    model = rounds.net()
    optimizer = make(model.parameters())
    for step in range(10):
        rounds.loss(model, 0, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(run.path[-1], rounds.flat(model.parameters()))


@pytest.mark.long
@pytest.mark.technique("asp", check=2)
@pytest.mark.technique("theory_koloskova_2022", check=1)
@pytest.mark.parametrize(
    "compute",
    [
        Compute(**ONE_SECOND),
        Compute(**ONE_SECOND, slowness=(1, 1, 2, 50)),
        Compute(**ONE_SECOND, slowness=(1, 3.7), straggling=Stragglers(0.2, 3)),
        Compute(**ONE_SECOND, law="exponential"),
    ],
    ids=["equal", "one far behind", "stragglers", "exponential"],
)
def test_the_mean_staleness_is_at_most_that_of_the_others(compute: Compute) -> None:
    """Whatever the speeds; the largest is whatever a slow worker makes it."""
    simulated, pushes = serving.busy("asp", 160, 4, compute=compute)
    recorded = [push.staleness for push in pushes]
    assert sorted(recorded) == sorted(serving.versions_of(simulated))
    assert np.mean(recorded) <= 3
    if compute == Compute(**ONE_SECOND):
        assert set(recorded[4:]) == {3}
    if 50 in compute.slowness:
        assert max(recorded) > 40


@pytest.mark.long
@pytest.mark.technique("theory_mishchenko_2022", check=2)
def test_no_more_gradients_are_in_flight_than_workers() -> None:
    """A gradient is in flight from the read of its model to its push."""
    compute = Compute(**ONE_SECOND, slowness=(1, 1, 1, 20), law="exponential")
    simulated, _ = serving.busy("asp", 160, 4, compute=compute)
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    is_in_flight, most = 0, 0
    for _, _, kind in hosted.calls:
        is_in_flight += {"peek": 1, "pull": 1, "push": -1}.get(kind, 0)
        most = max(most, is_in_flight)
    assert most == 4


@pytest.mark.long
@pytest.mark.technique("asynchrony_momentum", check=1)
@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_exponential_times_make_staleness_geometric(workers: int) -> None:
    compute = Compute(**ONE_SECOND, law="exponential")
    _, pushes = serving.busy("asp", 600, workers, compute=compute)
    late = np.array([push.staleness for push in pushes[4 * workers :]])
    assert late.mean() == pytest.approx(workers - 1, rel=0.05)
    law = staleness_law(workers, int(late.max()))
    found = np.bincount(late) / len(late)
    assert np.abs(np.cumsum(found - law)).max() < 0.05


@pytest.mark.long
@pytest.mark.technique("asp", check=3)
def test_a_permanent_straggler_delays_nobody_and_costs_some_loss() -> None:
    """At the best rate for bsp of 0.1, 0.2, 0.4 and 0.8; workers' data differ."""
    compute = Compute(**ONE_SECOND, slowness=(1, 1, 1, 4))
    for seed in range(2):
        make = digits.sgd(0.8)
        together, _ = serving.train("bsp", 400, 4, make, compute=compute, seed=seed)
        apart, _ = serving.train("asp", 400, 4, make, compute=compute, seed=seed)
        assert together.seconds / apart.seconds >= 2
        assert apart.results[0] >= together.results[0]


def test_finish_leaves_everybody_with_the_servers_model() -> None:
    simulated, _ = serving.count("asp", 3, 4, compute=Compute(**ONE_SECOND, slowness=(1, 2, 3)))
    assert all(torch.equal(tags, torch.ones(3, 4, dtype=torch.float64)) for tags in simulated.results)


FACTORS = {
    "inverse": lambda tau, t, total: rates.damped(tau),
    "capped": lambda tau, t, total: min(1.0, 4 / max(tau, 1)),
    "capped, limit=8, smoothness=2.5": lambda tau, t, total: 1.0 if tau <= 8 else min(1.0, 1 / (4 * 2.5 * 0.025 * tau)),
    "drop": lambda tau, t, total: float(tau <= 4),
    "adaptive": rates.aviv,
}


@pytest.mark.parametrize(
    ("rule", "factors"),
    [
        (ASP(), [1, 1, 1, 1, 1]),
        (ASP(staleness="inverse"), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        (ASP(staleness="capped"), [1, 1, 1, 2 / 3, 2 / 4]),
        (ASP(staleness="capped", limit=1), [1, 1, 1 / 2, 1 / 3, 1 / 4]),
        (ASP(staleness="drop"), [1, 1, 1, 0, 0]),
    ],
    ids=str,
)
def test_a_push_steps_with_its_part_of_the_rate(rule: ASP, factors: list[float]) -> None:
    """By hand, for staleness 0, 1, 2, 3 and 4: two workers' pushes count a half each, at the rate 0.5."""
    for tau, factor in enumerate(factors):
        served = Served(rule, workers=2, rate=0.5)
        served.store.version = 7
        assert served.push(1, 8.0, version=7 - tau) == {"staleness": tau, "factor": factor}
        assert served.value == [-0.5 * 0.5 * 8.0 * factor] and served.store.version == 7 + (factor > 0)


@pytest.mark.long
@pytest.mark.parametrize("rule", FACTORS)
def test_late_gradients_get_the_rates_of_theory(rule: str) -> None:
    """The server's steps are those of delayed SGD whose gradients the rule weighs."""
    compute = Compute(**ONE_SECOND, slowness=(1, 1, 1.5, 12))
    simulated, pushes = serving.busy(f"asp({rule})", 80, 4, compute=compute)
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    x, version, read, seen, total = 1.0, 0, {}, 0, 0
    for _, sender, kind in hosted.calls:
        if kind in ("peek", "pull"):
            read[sender] = (version, x)
        elif kind == "push":
            then, point = read[sender]
            seen, total = seen + 1, total + version - then
            factor = FACTORS[rule](version - then, seen, total)
            x -= 0.1 / 4 * factor * point
            version += factor > 0
    assert float(pushes[-1].model) == pytest.approx(x, rel=1e-12)
    assert max(push.staleness for push in pushes) > 8


@pytest.mark.long
def test_picky_applies_what_was_computed_nearby() -> None:
    compute = Compute(**ONE_SECOND, slowness=(1, 1, 1, 12))
    simulated, pushes = serving.busy("asp(picky, radius=0.05)", 80, 4, compute=compute)
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    x, read, dropped = 1.0, {}, 0
    for _, sender, kind in hosted.calls:
        if kind in ("peek", "pull"):
            read[sender] = x
        elif kind == "push":
            near = abs(x - read[sender]) <= 0.05
            x -= 0.1 / 4 * read[sender] * near
            dropped += not near
    assert float(pushes[-1].model) == pytest.approx(x, rel=1e-12)
    assert 0 < dropped < 20
    _, alone = serving.busy("asp(picky, radius=1e-9)", 20, 1)
    _, plain = serving.busy("asp", 20, 1)
    assert torch.equal(alone[-1].model, plain[-1].model)  # nothing comes between, so nothing is thrown away
    with pytest.raises(StrategyError, match="one server must hold it"):
        serving.busy("asp(picky) / none / ps(2)", 4, 2)


@pytest.mark.long
def test_auto_momentum_takes_off_what_asynchrony_adds() -> None:
    """Set in the server's optimizer alone; with one worker there is nothing to take off."""

    def momentum_here() -> float:
        model = nn.Linear(2, 1)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, optimizer, "asp(momentum=auto)")
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return float(optimizer.param_groups[0]["momentum"])

    for workers in (1, 2, 4, 20):
        simulated = laconic.simulate(momentum_here, workers)
        assert simulated.results == [0.9] * workers and simulated.rpc is not None
        (hosted,) = simulated.rpc.hosted_actors.values()
        (group,) = hosted.inbox.actor.store.optimizer.param_groups  # type: ignore[attr-defined]
        assert group["momentum"] == first_guess(0.9, workers)
    with pytest.raises(StrategyError, match="AdamW has none"):
        rounds.simulated("asp(momentum=auto)", 1, rounds.adamw, workers=2)


@pytest.mark.long
def test_tuned_momentum_needs_fewer_gradients_than_the_synchronous_one() -> None:
    """At 16 workers with exponential times: gradients until the loss is a hundredth of the first."""

    def needed(strategy: str) -> int:
        curvature = (1.0, 0.3, 0.1)
        compute = Compute(**ONE_SECOND, law="exponential")
        _, pushes = serving.busy(strategy, 600, 16, curvature, rate=0.05, momentum=0.9, compute=compute)
        losses = [float(push.model.square() @ torch.tensor(curvature, dtype=torch.float64)) for push in pushes]
        return next((k for k, _ in enumerate(losses) if max(losses[k : k + 50]) < 0.01 * sum(curvature)), 600)

    assert needed("asp(share=1, momentum=auto)") < needed("asp(share=1)")


def test_workers_go_at_their_own_pace_unless_the_delay_is_bounded() -> None:
    assert [rule.cadence for rule in (ASP(), ASP(delay=3))] == [Cadence(pace="own"), Cadence(pace="bounded")]
