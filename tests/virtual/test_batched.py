"""Losses that virtual workers compute together are the losses that each computes alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.errors import LaconicError
from laconic.runtime.current_worker import current

SENTENCES = (
    "bsp",
    "bsp / topk(0.1)+ef",
    "bsp / power_sgd(2)+ef",
    "local(3)",
    "diloco(3)",
    "bsp / none / allreduce / dear",
    "accumulate(2)",
    "jointspar(keep=0.1)",  # steps in which no layer is drawn, so that no parameter requires a gradient
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 11))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.body(self.embed(x))
        return scores


def mean_loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def train(
    sentence: str, together: bool, steps: int = 6, own_closure: bool = False, compile: bool = False
) -> tuple[list[Tensor], list[float]]:
    """Return the parameters of the last worker and its losses."""

    def work() -> tuple[list[Tensor], list[float]]:
        torch.manual_seed(laconic.rank())  # distribute() begins from rank 0's
        model: nn.Module = Net()
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        model, optimizer = laconic.distribute(model, optimizer, sentence)
        plain = partial(mean_loss) if own_closure else mean_loss
        loss = laconic.batched(plain, compile) if together else plain
        losses = []
        for step in range(steps):
            draw = torch.Generator().manual_seed(100 * step + laconic.rank())
            x, y = torch.randint(11, (2, 5), generator=draw)
            value = loss(model, x, y)
            value.backward()
            laconic.clip_grad_norm_(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(value.item())
        laconic.finish(model, optimizer)
        return [p.detach().clone() for p in model.parameters()], losses

    return laconic.simulate(work, 3).results[-1]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_training_together_is_training_alone(sentence: str) -> None:
    alone, together = train(sentence, False), train(sentence, True)
    assert together[1] == pytest.approx(alone[1], rel=1e-4)
    for a, b in zip(alone[0], together[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("sentence", ["local(3)", "bsp / topk(0.1)+ef"])
def test_a_compiled_loss_is_the_loss(sentence: str) -> None:
    alone, together = train(sentence, False), train(sentence, True, compile=True)
    assert together[1] == pytest.approx(alone[1], rel=1e-4)
    for a, b in zip(alone[0], together[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_each_worker_may_bring_a_function_of_its_own() -> None:
    torch.testing.assert_close(train("bsp", True, own_closure=True), train("bsp", True))


def test_gradients_add_up_and_scale_as_autograd_says() -> None:
    def work() -> list[Tensor]:
        model = Net()
        loss = laconic.batched(mean_loss)
        x, y = torch.arange(5), torch.arange(5) + laconic.rank()
        loss(model, x, y).backward()
        (3 * loss(model, x, y)).backward()
        found = [p.grad.clone() for p in model.body.parameters() if p.grad is not None]
        model.zero_grad()
        mean_loss(model, x, y).backward()
        assert len(found) == 6
        for p, gradient in zip(model.body.parameters(), found, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(gradient, 4 * p.grad)
        return found

    results = laconic.simulate(work, 2).results
    assert not torch.equal(results[0][0], results[1][0]), "each has the gradients of its own batch"


@pytest.mark.parametrize("sentence", ["one_shot_averaging", "bsp / none / allreduce / dear"])
def test_virtual_time_passes_as_if_each_computed_alone(sentence: str) -> None:
    def work(together: bool) -> float:
        model: nn.Module = Net()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = laconic.distribute(model, optimizer, sentence)
        for _ in range(4):
            loss = laconic.batched(mean_loss) if together else mean_loss
            loss(model, torch.arange(5), torch.arange(5)).backward()
            optimizer.step()
        laconic.finish(model, optimizer)
        worker: Any = current()
        return float(worker.clock_seconds())

    compute = laconic.Compute(forward_seconds=1.0, backward_seconds=2.0, step_seconds=0.5, slowness=(1, 3))
    alone, together = (
        laconic.simulate(partial(work, way), 2, "10Mbit", compute=compute).results for way in (False, True)
    )
    assert together == pytest.approx(alone, rel=0.02)
    assert min(together) > 13


def test_unequal_batches_are_refused() -> None:
    def work() -> None:
        n = 4 + laconic.rank()
        laconic.batched(mean_loss)(Net(), torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long))

    with pytest.raises(LaconicError, match="their shapes differ"):
        laconic.simulate(work, 2)


def test_alone_it_is_the_loss_itself() -> None:
    model, x = Net(), torch.arange(5)
    value = laconic.batched(mean_loss)(model, x, x)
    assert torch.equal(value, mean_loss(model, x, x))
