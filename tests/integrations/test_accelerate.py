"""Accelerate's loop with laconic's communication: the bits of DDP under `bsp`, and local steps that stay local."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from tests.integrations.scripts import EXAMPLES, changed_lines, needs, torchrun, without_laconic
from tests.real.pool import Pool, PoolRank

pytestmark = [pytest.mark.long, needs("accelerate")]


@pytest.mark.parametrize("accumulated", ["1", "2"])
def test_the_example_has_the_bits_of_accelerates_own(tmp_path: Path, accumulated: str) -> None:
    assert changed_lines("accelerate_digits.py") <= 3
    size = ["--epochs", "1", "--accumulate", accumulated]
    own = torchrun(without_laconic("accelerate_digits.py", tmp_path), *size)
    assert own.startswith("loss 2.")
    assert torchrun(EXAMPLES / "accelerate_digits.py", *size) == own
    assert torchrun(EXAMPLES / "accelerate_digits.py", "--strategy", "local(4) / bf16+ef", *size) != own


def prepared(strategy: str, **options: Any) -> tuple[Any, ...]:
    from accelerate import Accelerator

    from laconic.integrations.accelerate import prepare

    torch.manual_seed(3)
    model = nn.Linear(6, 5)
    draw = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(48, 6, generator=draw), torch.randn(48, 5, generator=draw))
    accelerator = Accelerator(cpu=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    loader = DataLoader(data, batch_size=3)
    return accelerator, *prepare(accelerator, strategy, model, optimizer, scheduler, loader)


def local_steps(member: PoolRank, folder: str) -> tuple[list[float], list[float], int, float, bool]:
    accelerator, model, optimizer, scheduler, loader = prepared("local(3)")
    weights, rates = [], []
    before = laconic.traffic().payload_bytes
    for x, y in loader:
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        weights.append(model.weight.sum().item())
        rates.append(optimizer.param_groups[0]["lr"])
    sent = laconic.traffic().payload_bytes - before
    laconic.checkpoint(folder, model, optimizer.optimizer)
    last = model.weight.detach().clone()
    laconic.finish(model, optimizer.optimizer)
    restored = not torch.equal(model.weight, last)
    laconic.resume(folder, model, optimizer.optimizer)
    return weights, rates, len(loader), sent, restored and torch.equal(model.weight, last)


def test_local_steps_stay_local_and_the_loader_is_shared_out(pool: Pool, tmp_path: Path) -> None:
    results = pool.run(local_steps, str(tmp_path / "saved"), workers=4)
    by_step = list(zip(*(weights for weights, *_ in results), strict=True))
    assert len(by_step) == 4, "48 items, 3 in a batch, 4 workers"
    assert [len(set(step)) for step in by_step] == [4, 4, 1, 4], "averaged in the third step alone"
    for _, rates, batches, sent, restored in results:
        assert batches == 4 and restored
        assert rates == pytest.approx([0.05 * 0.9 ** (4 * k) for k in (1, 2, 3, 4)]), "accelerate's own scheduler"
        assert sent == pytest.approx(1.5 * 4 * 35, rel=0.1), "one all-reduce of the model in four steps"


def refusals(member: PoolRank) -> list[str]:
    from accelerate import Accelerator

    from laconic.integrations.accelerate import prepare

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    found = []
    for objects in [(model,), (model, other, torch.optim.SGD(model.parameters(), 0.1))]:
        try:
            prepare(Accelerator(cpu=True), "bsp", *objects)
        except laconic.ContractError as error:
            found.append(str(error))
    return found


def test_what_cannot_be_distributed_together_is_refused(pool: Pool) -> None:
    for found in pool.run(refusals, workers=4):
        assert ["not 1 and 0" in found[0], "not 2 and 1" in found[1]] == [True, True]
