"""DiLoCo is what its paper defines: local steps, one mean, one outer step."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from laconic.sync import outer_optimizer
from laconic.sync.diloco import DiLoCo
from tests.sync.rounds import Make, adamw, assert_same, by_hand, muon, sgd, simulated


def averaging(parameters: object) -> torch.optim.Optimizer:
    """Takes the mean of the parameters."""
    return torch.optim.SGD(parameters, lr=1.0)  # type: ignore[arg-type]


def nesterov(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)  # type: ignore[arg-type]


def test_the_outer_step_is_torchs() -> None:
    point, momentum = torch.tensor([1.0, -2.0]), torch.zeros(2)
    theirs = point.clone()
    optimizer = nesterov([theirs])
    for step in range(4):
        gradient = torch.tensor([0.5, 1.0 - step])
        theirs.grad = gradient.clone()
        optimizer.step()
        outer_optimizer.nesterov(point, momentum, gradient, rate=0.7, mu=0.9)
        torch.testing.assert_close(point, theirs)


@pytest.mark.long
@pytest.mark.technique("diloco", check=1)
def test_a_round_of_one_plain_step_is_bsp() -> None:
    local = simulated("diloco(period=1, lr=1, momentum=0)", 12, sgd)
    everyone = simulated("bsp", 12, sgd)
    assert_same(local, [run.path[-1] for run in everyone], 1e-6)


@pytest.mark.technique("diloco", check=1)
@pytest.mark.parametrize("period", [1, 3, 5])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_without_an_outer_optimizer_it_averages_parameters(period: int, make: Make) -> None:
    runs = simulated(f"diloco(period={period}, lr=1, momentum=0)", 11, make)
    assert_same(runs, by_hand(11, period, make, averaging))


@pytest.mark.long
@pytest.mark.parametrize("make", [adamw, muon])
def test_it_is_torchs_nesterov_around_any_optimizer(make: Make) -> None:
    assert_same(simulated("diloco(period=3)", 11, make), by_hand(11, 3, make, nesterov))


@pytest.mark.long
@pytest.mark.technique("diloco", check=2)
@pytest.mark.parametrize("period", [2, 5])
def test_it_sends_as_much_as_one_step_of_bsp_per_round(period: int) -> None:
    everyone, runs = simulated("bsp", 10), simulated(f"diloco(period={period})", 10, adamw)
    for mine, theirs in zip(runs, everyone, strict=True):
        assert sum(mine.sent_bytes) * period == sum(theirs.sent_bytes)
        assert [bool(n) for n in mine.sent_bytes] == [(step + 1) % period == 0 for step in range(10)]


@pytest.mark.technique("diloco", check=2)
@pytest.mark.parametrize("make", [adamw, muon])
def test_after_a_round_workers_share_the_point_and_nothing_else(make: Make) -> None:
    runs = simulated("diloco(period=4)", 8, make)
    for step in range(8):
        same = all(torch.equal(run.path[step], runs[0].path[step]) for run in runs)
        assert same == ((step + 1) % 4 == 0)
    memory = "exp_avg" if make is adamw else "momentum_buffer"
    assert not any(torch.equal(a.memory(memory), b.memory(memory)) for a, b in pairwise(runs))


def test_without_momentum_none_is_kept() -> None:
    assert [DiLoCo(momentum=m).keeps_momentum for m in (0.0, 0.1)] == [False, True]
