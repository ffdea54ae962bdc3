"""Large batches: the schedule of the learning rate, the bytes of an epoch, and what warm-up and LARS are good for."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import StrategyError
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.sync import digits
from tests.sync.rounds import flat

IMAGES = 1297
EPOCHS = 20


def rates(strategy: str, workers: int, steps: int) -> list[float]:
    """The learning rate each step really had."""

    def body() -> list[float]:
        model: nn.Module = nn.Linear(1, 1)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[float] = []
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["lr"]))
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        for _ in range(steps):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == 0.1, "the script's own stays"
        return seen

    first: list[float] = laconic.simulate(body, workers).results[0]
    return first


@pytest.mark.technique("large_batch_sgd", check=1)
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_rate_grows_linearly_to_the_scaled_one_whatever_the_workers(workers: int) -> None:
    found = rates("large_batch_sgd(2048, base=256, warmup=10)", workers, 13)
    assert found == pytest.approx([0.1 + 0.07 * step for step in range(10)] + [0.8] * 3)
    assert found[0] == 0.1


def test_without_warm_up_it_begins_at_the_scaled_rate() -> None:
    assert rates("large_batch_sgd(2048, base=256, warmup=0)", 2, 2) == pytest.approx([0.8, 0.8])


def bytes_of_an_epoch(batch: int, workers: int = 4, images: int = 1024) -> float:
    def body() -> float:
        model = digits.network(0)
        sentence = f"large_batch_sgd({batch}, base=32, warmup=5)"
        model, optimizer = laconic.distribute(model, digits.sgd(0.01)(model.parameters()), sentence)
        before, seen = connect().ledger.sent_bytes(Kind.PAYLOAD), 0
        while seen < images // workers:
            mine = laconic.batch_size(1)
            model(torch.ones(mine, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += mine
        return connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    (sent, *_) = laconic.simulate(body, workers).results
    assert sent == 1.5 * flat(digits.network(0).parameters()).nbytes * images / batch
    return float(sent)


@pytest.mark.long
@pytest.mark.technique("large_batch_sgd", check=2)
def test_an_epoch_of_twice_the_batch_sends_half_the_bytes() -> None:
    sent = [bytes_of_an_epoch(batch) for batch in (64, 128, 256)]
    assert sent[0] == 2 * sent[1] == 4 * sent[2]


def test_batches_that_grow_grow_by_whole_samples() -> None:
    def body() -> list[int]:
        model: nn.Module = nn.Linear(1, 1)
        sentence = "cr_psgd(10, growth=1.25, most=20)"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), sentence)
        batches = []
        for _ in range(6):
            batches.append(laconic.batch_size(1))
            model(torch.ones(batches[-1], 1)).mean().backward()
            optimizer.step()
        return batches

    assert laconic.simulate(body, 2).results == [[10, 12, 15, 18, 20, 20]] * 2


# ---------------------------------------------------------------------------------------------- accuracy


class Standardised(nn.Module):
    """A network with He's initialisation on pixels of mean zero and variance about one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for a, b in ((64, 64), (64, 64), (64, 10)):
            layers += [nn.Linear(a, b), nn.ReLU()]
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")  # type: ignore[arg-type]
            nn.init.zeros_(layers[-2].bias)  # type: ignore[arg-type]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        seen = digits.data()[0]
        scores: Tensor = self.layers((images - seen.mean(dim=0)) / (seen.std(dim=0) + 0.1))
        return scores


def accuracy(strategy: str, batch: int, make: digits.Make, decay: Any, workers: int = 2) -> float:
    """In points, after all epochs, the mean of three seeds."""
    steps = EPOCHS * IMAGES // batch
    runs = (
        digits.trained(
            strategy, steps, batch // workers, make, workers, seed=seed, build=Standardised, before_step=decay(steps)
        )
        for seed in range(3)
    )
    return sum(run.accuracy for run in runs) / 3


def step_decay(steps: int) -> Any:
    """To a tenth after two thirds."""

    def decay(optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 2 * steps // 3:
            optimizer.param_groups[0]["lr"] *= 0.1

    return decay


@cache
def small_batch() -> float:
    return accuracy("bsp", 16, digits.sgd(0.04, 0.9), step_decay, workers=1)


def scaled(batch: int, epochs: int) -> float:
    sentence = f"large_batch_sgd({batch}, base=16, warmup={epochs * IMAGES // batch})"
    return accuracy(sentence, batch, digits.sgd(0.04, 0.9), step_decay)


@pytest.mark.long
@pytest.mark.technique("large_batch_sgd", check=3)
def test_scaled_and_warmed_up_eight_times_the_batch_is_as_accurate() -> None:
    warm, cold = scaled(128, epochs=5), scaled(128, epochs=0)
    assert warm > small_batch() - 1
    assert cold < warm


@pytest.mark.long
@pytest.mark.technique("lars", check=3)
def test_where_scaled_sgd_loses_lars_does_not() -> None:
    """Sixteen times the batch. LARS by its paper's recipe: warm-up, then polynomial decay; biases left out."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        given = list(parameters)
        weights, biases = [p for p in given if p.ndim > 1], [p for p in given if p.ndim == 1]
        return laconic.optim.LARS(
            [{"params": weights}, {"params": biases, "adapt": False, "lr": 0.1}], lr=1, trust=0.02
        )

    def polynomial(steps: int) -> Any:
        def decay(optimizer: torch.optim.Optimizer, step: int) -> None:
            groups = optimizer.param_groups
            factor = min(1, 6 * (step + 1) / steps) * (1 - step / steps) ** 2
            for group, rate in zip(groups, (1.0, 0.1), strict=True):
                group["lr"] = rate * factor

        return decay

    assert scaled(256, epochs=5) < small_batch() - 3
    assert accuracy("bsp", 256, make, polynomial) > small_batch() - 1.5


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_optimizers_are_refused_as_words(name: str) -> None:
    with pytest.raises(StrategyError, match=f"{name} is a function of sync, not a word.*laconic show {name}"):
        laconic.Strategy.parse(f"{name} / none / allreduce")
