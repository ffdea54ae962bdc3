"""SlowMo: a momentum around local steps, and what becomes of the momentum inside."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

import pytest
import torch
from torch import nn

import laconic
from tests.sync.digits import sgd as digits_sgd
from tests.sync.digits import trained
from tests.sync.rounds import Make, adamw, assert_same, by_hand, sgd, simulated, train, with_momentum
from tests.sync.test_diloco import averaging


def heavy_ball(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.6)


def slowly(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With a constant inner rate the slow momentum is heavy-ball SGD on the displacement."""
    return torch.optim.SGD(parameters, lr=0.8, momentum=0.5)


@pytest.mark.technique("slowmo", check=1)
@pytest.mark.parametrize("make", [sgd, with_momentum, adamw])
def test_without_slow_momentum_it_is_local_sgd(make: Make) -> None:
    assert_same(simulated("slowmo(period=3, alpha=1, beta=0)", 11, make), by_hand(11, 3, make, averaging), 1e-6)


@pytest.mark.long
@pytest.mark.technique("slowmo", check=2)
def test_rounds_of_one_plain_step_are_bsp_with_heavy_ball() -> None:
    slow = simulated("slowmo(period=1, alpha=1, beta=0.6)", 12, sgd)
    assert_same(slow, [run.path[-1] for run in simulated("bsp", 12, heavy_ball)], 1e-6)


def test_it_is_a_heavy_ball_on_the_displacement() -> None:
    runs = simulated("slowmo(period=3, alpha=0.8, beta=0.5)", 11, with_momentum)
    assert_same(runs, by_hand(11, 3, with_momentum, slowly))


def test_its_momentum_does_not_know_the_learning_rate() -> None:
    """Where the rate decays, u counts gradients, not steps of unequal size."""

    def decaying() -> torch.Tensor:
        run = train("slowmo(period=1, beta=0.5)", 1, sgd)
        before = run.remembered("momentum").clone()
        run.optimizer.param_groups[0]["lr"] = 1e-3
        for p in run.model.parameters():
            p.grad = torch.ones_like(p)
        run.optimizer.step()
        return run.remembered("momentum") - 0.5 * before

    (change,) = laconic.simulate(decaying, 1).results
    torch.testing.assert_close(change, torch.ones_like(change), rtol=1e-9, atol=0)


def test_a_rate_of_zero_moves_nothing() -> None:
    runs = simulated("slowmo(period=1)", 3, lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    assert all(torch.equal(run.path[-1], run.path[0]) for run in runs)


@pytest.mark.parametrize("make", [with_momentum, adamw])
def test_the_optimizers_own_memory_is_reset_kept_or_averaged(make: Make) -> None:
    name = "momentum_buffer" if make is with_momentum else "exp_avg"
    reset, kept, averaged = (
        simulated(f"slowmo(period=3, buffers={choice})", 3, make) for choice in ("reset", "keep", "average")
    )
    assert not any(run.optimizer.state for run in reset)
    middle = torch.stack([run.memory(name) for run in kept]).mean(dim=0)
    for mine, theirs in zip(averaged, kept, strict=True):
        torch.testing.assert_close(mine.memory(name), middle, rtol=0, atol=1e-12)
        assert not torch.equal(theirs.memory(name), middle)
        assert torch.equal(mine.path[-1], theirs.path[-1])
    assert all(run.path for run in simulated("slowmo(period=3, buffers=reset)", 7, make))


@pytest.mark.long
@pytest.mark.technique("slowmo", check=3)
def test_after_as_many_rounds_its_loss_is_below_local_sgds() -> None:
    """Each at its own best learning rate of the same four, which is neither the smallest nor the largest of them."""
    rates = (0.2, 0.4, 0.8, 1.6)

    def best(strategy: str) -> float:
        losses = {
            rate: mean(trained(strategy, 10 * 12, 16, digits_sgd(rate), seed=seed).loss for seed in range(3))
            for rate in rates
        }
        chosen = min(rates, key=losses.__getitem__)
        assert rates[0] < chosen < rates[-1], f"{strategy}: the grid ends at the best rate, {losses}"
        return losses[chosen]

    slow = min(best(f"slowmo(period=12, beta={beta})") for beta in (0.4, 0.6, 0.8))
    assert slow < 0.9 * best("local_sgd(12)"), "not only by rounding"
