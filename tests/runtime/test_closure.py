"""`step(closure)`: an ordinary optimizer's closure is called once, whatever the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import ContractError

STRATEGIES = [
    "bsp",
    "bf16+ef",
    "local(4)",
    "accumulate(2)",
    "diloco(period=3)",
    "bsp / ps",
    "ssp(staleness=2) / ps",
    "bsp / dear",
]


def trained(strategy: str, advance: Callable[[Any, Callable[[], Tensor]], Any]) -> list[tuple[Tensor, int, list[Any]]]:
    """Every worker's parameters, how often the closure was called, and what the steps returned."""

    def body() -> tuple[Tensor, int, list[Any]]:
        torch.manual_seed(1)
        model: nn.Module = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, sgd, strategy)
        draw = torch.Generator().manual_seed(laconic.rank())
        calls, returned = 0, []
        for _ in range(6):
            x = torch.randn(4, 6, generator=draw)

            def closure(x: Tensor = x) -> Tensor:
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss

            returned.append(advance(optimizer, closure))
        laconic.finish(model, optimizer)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), calls, returned

    return laconic.simulate(body, 2).results


def by_hand(optimizer: Any, closure: Callable[[], Tensor]) -> Tensor:
    loss = closure()
    optimizer.step()
    return loss


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_closure_is_called_once_and_trains_as_a_loop_without_it(strategy: str) -> None:
    steps = trained(strategy, lambda optimizer, closure: optimizer.step(closure))
    for (found, calls, returned), (expected, _, losses) in zip(steps, trained(strategy, by_hand), strict=True):
        assert torch.equal(found, expected) and calls == 6
        assert torch.equal(torch.stack(returned), torch.stack(losses))


def test_hooks_of_a_step_run_once() -> None:
    counts: list[int] = []

    def advance(optimizer: Any, closure: Callable[[], Tensor]) -> None:
        handle = optimizer.register_step_post_hook(lambda *_: counts.append(1))
        optimizer.step(closure)
        handle.remove()

    trained("bf16+ef", advance)
    assert len(counts) == 12


class TwoPasses(torch.optim.SGD):
    """An optimizer whose optional closure is evaluated twice in a step, as sharpness-aware ones do."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        assert closure is not None
        with torch.enable_grad():
            losses = [closure(), closure()]
        super().step()
        return losses


def test_a_plain_bsp_lets_an_optimizer_evaluate_its_closure_again_and_shows_it_the_mean_loss() -> None:
    def body() -> tuple[list[float], float]:
        torch.manual_seed(2)
        model: nn.Module = nn.Linear(5, 3)
        model, optimizer = laconic.distribute(model, TwoPasses(model.parameters(), lr=0.1), "bsp")
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(laconic.rank()))
        own: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            own.append(model(x).square().mean())
            own[-1].backward()
            return own[-1]

        return [float(loss) for loss in optimizer.step(closure)], float(own[0].detach())

    (first, own), (second, other) = laconic.simulate(body, 2).results
    assert first == second and len(first) == 2
    assert first[0] == pytest.approx((own + other) / 2) and own != other


@pytest.mark.parametrize("strategy", ["bf16", "local(2)", "accumulate(1)"])
def test_an_optimizer_that_evaluates_often_is_refused(strategy: str) -> None:
    def body() -> None:
        model = nn.Linear(3, 2)
        _, optimizer = laconic.distribute(model, torch.optim.LBFGS(model.parameters()), strategy)
        optimizer.step(lambda: torch.tensor(0.0))

    with pytest.raises(ContractError, match=r"LBFGS evaluates its closure several times.*without compression"):
        laconic.simulate(body, 2)
