"""`auto`: measure, agree, decide; and never touch the mathematics without a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import StrategyError
from laconic.language.auto import START, begins_as, budget_of
from laconic.network.network_tree import Network
from laconic.planner.loss_budget import strategies_within
from laconic.planner.risk import Training, risk_of
from laconic.virtual.compute import Compute

WORKERS, STEPS = 4, 14
TRAINING = Training("classifier", "sgd", WORKERS, 4_148)  # not ten times smaller than the model that was measured
COMPUTE = Compute(0.004, 0.008, 0.001)


def train(strategy: str, folder: Path | None = None, steps: int = STEPS) -> tuple[str, list[float]]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, 112), nn.Tanh(), nn.Linear(112, 4))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    if folder is not None:
        laconic.resume(folder, model, optimizer)
    draw = torch.Generator().manual_seed(laconic.rank())
    for _ in range(steps):
        x = torch.randn(8, 32, generator=draw)
        nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if folder is not None:
        laconic.checkpoint(folder, model, optimizer)
    laconic.finish(model, optimizer)
    values = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    return str(optimizer.session.strategy), values  # type: ignore[attr-defined]


def simulated(strategy: str, bits_per_second: float, folder: Path | None = None) -> list[tuple[str, list[float]]]:
    network = Network.flat(WORKERS, bits_per_second, 1e-4)
    return laconic.simulate(lambda: train(strategy, folder), WORKERS, network, COMPUTE).results


@pytest.mark.long
@pytest.mark.parametrize("bits_per_second", [1e6, 1e10])
def test_without_a_budget_the_model_is_that_of_bsp(bits_per_second: float) -> None:
    chosen, plain = simulated("auto", bits_per_second), simulated("bsp", bits_per_second)
    assert [name for name, _ in chosen] == [START] * WORKERS
    assert [values for _, values in chosen] == [values for _, values in plain]


@pytest.mark.long
def test_a_budget_pays_on_a_slow_network_and_is_not_spent_on_a_fast_one(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = simulated("auto(loss_budget=10%)", 1e6), simulated("auto(loss_budget=10%)", 1e12)
    (name,) = {name for name, _ in slow}
    assert name != START, "all workers agree on something else"
    risk = risk_of(name, TRAINING)
    assert risk is not None and risk.high <= 1.1
    assert {name for name, _ in fast} == {START}
    message = capsys.readouterr().err
    assert f"auto, step 6: `{name}`" in message and "without loss" in message


@pytest.mark.long
def test_a_checkpoint_goes_on_with_what_was_chosen(tmp_path: Path) -> None:
    first = simulated("auto(loss_budget=10%)", 1e6, tmp_path)
    again = laconic.simulate(
        lambda: train("auto(loss_budget=10%)", tmp_path, 1), WORKERS, Network.flat(WORKERS, 1e6, 1e-4), COMPUTE
    ).results
    assert {name for name, _ in again} == {name for name, _ in first}


def test_what_is_admitted_was_measured_to_stay_within_the_budget() -> None:
    few, many = strategies_within(0.01, TRAINING), strategies_within(0.2, TRAINING)
    assert set(few) < set(many)
    for text in many:
        risk = risk_of(text, TRAINING)
        assert risk is not None and risk.high <= 1.2


@pytest.mark.parametrize("of", [{"kind": "transformer"}, {"optimizer": "adamw"}, {"workers": 5}, {"parameters": 10**8}])
def test_of_another_training_nothing_is_known_and_only_rounding_is_admitted(of: dict[str, object]) -> None:
    within = strategies_within(10.0, replace(TRAINING, **of))  # type: ignore[arg-type]
    assert within == [f"bsp / {cast} / allreduce / auto(false)" for cast in ("cast_bf16", "cast_fp16")]


def test_the_text_of_a_choice() -> None:
    assert budget_of("auto") == budget_of(" auto() ") == 0.0
    assert budget_of("auto(loss_budget=0.5%)") == pytest.approx(0.005)
    assert budget_of("auto(loss_budget = 0.02)") == pytest.approx(0.02)
    for text in ("bsp", "bsp / none / allreduce / auto", "auto(false)", "automatic"):
        assert budget_of(text) is None
        assert begins_as(text) == text
    for text in ("auto(loss_budget=much)", "auto(loss_budget=-1)", "auto(loss_budget=300%)"):
        with pytest.raises(StrategyError, match=r"loss_budget=0\.5%"):
            budget_of(text)
