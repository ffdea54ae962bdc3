"""What virtual workers gather is one tensor for all of them, and what follows from it is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.compression.bucket import BucketMeet, Moment
from laconic.compression.codec import Codec
from laconic.compression.signs import ScaledSign
from laconic.errors import LaconicError
from laconic.runtime.current_worker import current
from laconic.virtual.gathered import AllGathered
from laconic.worker import Group

WORKERS, STEPS = 4, 3


def world() -> Group:
    worker = current()
    assert worker is not None
    return worker.world


def train(sentence: str) -> list[Tensor]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, sentence)
    torch.manual_seed(1 + laconic.rank())
    for _ in range(STEPS):
        functional.mse_loss(model(torch.randn(8, 20)), torch.zeros(8, 5)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def test_all_workers_read_one_tensor() -> None:
    def gather() -> tuple[int, list[float]]:
        rows = world().all_gather(torch.full((2,), float(laconic.rank()))).wait()
        return rows.data_ptr(), rows[:, 0].tolist()

    results = laconic.simulate(gather, WORKERS).results
    assert len({address for address, _ in results}) == 1
    assert all(values == [0.0, 1.0, 2.0, 3.0] for _, values in results)


def test_writing_to_what_others_are_to_read_is_an_error() -> None:
    def spoil() -> None:
        world().all_gather(torch.ones(2)).wait().add_(1)

    with pytest.raises(LaconicError, match="copy it first"):
        laconic.simulate(spoil, WORKERS)


@pytest.mark.parametrize("sentence", ["bsp / scaled_sign+ef", "bsp / qsgd", "bsp / topk(0.1)+ef", "bsp / int8+two_hop"])
def test_sharing_changes_no_bit(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = laconic.simulate(lambda: train(sentence), WORKERS).results
    monkeypatch.setattr(AllGathered, "compute", lambda self, answer, into, compute: compute())
    apart = laconic.simulate(lambda: train(sentence), WORKERS).results
    for a, b in zip(shared, apart, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_messages_are_decoded_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    original: Callable[..., Any] = ScaledSign.means

    def means(self: Codec, rows: Tensor, *rest: Any) -> Any:
        decoded.append(len(rows))
        return original(self, rows, *rest)

    monkeypatch.setattr(ScaledSign, "means", means)
    laconic.simulate(lambda: train("bsp / scaled_sign+ef"), WORKERS)
    assert decoded == [WORKERS] * STEPS


def test_an_exchange_that_is_recorded_computes_by_itself() -> None:
    shared: list[Tensor] = []

    def alike(answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        shared.append(answer)

    computed: list[str] = []
    rows, into = torch.ones(2, 3), torch.zeros(3)
    now = Moment(0, 1.0, lambda spec: pytest.fail("no draw is made here"))
    for moment in (None, now):
        BucketMeet(0, 2, False, (), moment, None, alike).common(rows, into, lambda: computed.append("here"))
    assert computed == ["here"]
    assert len(shared) == 1
