"""Checkpoints hold every rank's memory; a resumed run is the undisturbed one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, TensorDataset

import laconic
from tests import toys
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import mlp, plain_step


def start(member: PoolRank, strategy: str, seed: int = 3) -> Any:
    toys.register()
    torch.manual_seed(seed)
    model = mlp()
    return laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def noisy_step(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    """A step whose data come from all three global generators, so that each must be restored."""
    x = torch.randn(8, 12) + float(np.random.rand()) + random.random()
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def interrupted(member: PoolRank, strategy: str, folder: str) -> bool:
    def seeded() -> None:
        torch.manual_seed(member.rank)
        np.random.seed(member.rank)
        random.seed(member.rank)

    model, optimizer = start(member, strategy)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    seeded()
    for step in range(10):
        noisy_step(model, optimizer, member.rank, step)
        scheduler.step()
        if step == 5:
            laconic.checkpoint(folder, model, optimizer, scheduler=scheduler, step=step + 1)
    whole = values(model)

    model, optimizer = start(member, strategy, seed=99)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    extras = laconic.resume(folder, model, optimizer, scheduler=scheduler)
    for step in range(extras["step"], 10):
        noisy_step(model, optimizer, member.rank, step)
        scheduler.step()
    return torch.equal(whole, values(model)) and optimizer.session.steps == 10


@pytest.mark.parametrize(
    "strategy", ["bsp", "toy_topk(0.1)+ef", "toy_power(1)+ef", "toy_local(4)", "bsp until step 4, then bf16+ef"]
)
def test_a_resumed_run_is_the_undisturbed_one(pool: Pool, tmp_path: Path, strategy: str) -> None:
    assert pool.run(interrupted, strategy, str(tmp_path)) == [True, True]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000000006-0"]


def interrupted_with_torchs_checkpoint(member: PoolRank, strategy: str, folder: str) -> bool:
    model, optimizer = start(member, strategy)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(10):
        noisy_step(model, optimizer, member.rank, step)
        scheduler.step()
        if step == 5:
            state = {"training": laconic.TrainingState(model, optimizer, scheduler=scheduler), "epoch": 1}
            dcp.save(state, checkpoint_id=folder, process_group=member.process_group)
    whole = values(model)

    model, optimizer = start(member, strategy, seed=99)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    training = laconic.TrainingState(model, optimizer, scheduler=scheduler)
    assert isinstance(training, Stateful)
    state = {"training": training, "epoch": 0}
    dcp.load(state, checkpoint_id=folder, process_group=member.process_group)
    assert state["epoch"] == 1
    for step in range(6, 10):
        noisy_step(model, optimizer, member.rank, step)
        scheduler.step()
    return torch.equal(whole, values(model)) and optimizer.session.steps == 10


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("strategy", "workers"), [("bsp", 1), ("toy_topk(0.1)+ef", 2), ("toy_local(4)", 2)])
def test_torchs_own_checkpoints_resume_the_undisturbed_run(
    pool: Pool, tmp_path: Path, strategy: str, workers: int
) -> None:
    found = pool.run(interrupted_with_torchs_checkpoint, strategy, str(tmp_path), workers=workers)
    assert found == [True] * workers
    tensors: dict[str, Any] = {"training": {"model": {"0.weight": torch.empty_like(mlp()[0].weight)}}}
    dcp.load(tensors, checkpoint_id=tmp_path, no_dist=True)  # any program reads the model, tensor by tensor
    assert tensors["training"]["model"]["0.weight"].isfinite().all()


def test_a_training_state_holds_objects_and_says_where_values_go(pool: Pool) -> None:
    assert pool.run(refused_value, workers=1) == [True]


def refused_value(member: PoolRank) -> bool:
    with pytest.raises(laconic.ContractError, match="not int: give plain values"):
        laconic.TrainingState(*start(member, "bsp"), epoch=3)
    return True


def memories(member: PoolRank, folder: str, save: bool) -> tuple[torch.Tensor, int]:
    model, optimizer = start(member, "toy_topk(0.1)+ef")
    if save:
        for step in range(4):
            plain_step(model, optimizer, member.rank, step)
        laconic.checkpoint(folder, model, optimizer)
    else:
        laconic.resume(folder, model, optimizer)
    (tier,) = optimizer.session.partitions[0].tiers
    total = torch.cat([tier.memory[name]["error"].flatten() for name in sorted(tier.memory)])
    torch.distributed.all_reduce(total, group=member.process_group)
    return total, optimizer.session.steps


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 2), (1, 3)])
def test_the_sum_of_memories_survives_a_change_of_workers(pool: Pool, tmp_path: Path, before: int, after: int) -> None:
    saved = pool.run(memories, str(tmp_path), True, workers=before)[0]
    loaded = pool.run(memories, str(tmp_path), False, workers=after)
    for total, steps in loaded:
        torch.testing.assert_close(total, saved[0], rtol=1e-5, atol=1e-6)
        assert steps == 4
    assert saved[0].abs().sum() > 0


def nothing_yet(member: PoolRank, folder: str) -> dict[str, Any]:
    return laconic.resume(folder, *start(member, "bsp"))


def test_no_checkpoint_yet_is_a_fresh_start(pool: Pool, tmp_path: Path) -> None:
    assert pool.run(nothing_yet, str(tmp_path)) == [{}, {}]


class Interrupting:
    """An object whose saving is interrupted, as by Ctrl-C in the middle of a write."""

    def state_dict(self) -> Any:
        return self

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def interrupted_write(member: PoolRank, folder: str) -> list[str]:
    model, optimizer = start(member, "bsp")
    laconic.checkpoint(folder, model, optimizer)
    plain_step(model, optimizer, member.rank, 0)
    with pytest.raises(KeyboardInterrupt):
        laconic.checkpoint(folder, model, optimizer, bad=Interrupting())
    assert laconic.resume(folder, model, optimizer) == {}
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def test_an_interrupted_write_leaves_the_last_checkpoint_whole(pool: Pool, tmp_path: Path) -> None:
    files = pool.run(interrupted_write, str(tmp_path))[0]
    assert files == ["latest", "step-000000000-0/rank-0.pt", "step-000000000-0/rank-1.pt"]


def twice_at_one_step(member: PoolRank, folder: str) -> tuple[list[str], dict[str, Any]]:
    """Other folders are left alone; a second save of a step that fails half-way leaves the first whole."""
    model, optimizer = start(member, "bsp")
    (Path(folder) / "step-by-step-notes").mkdir(exist_ok=True)
    laconic.checkpoint(folder, model, optimizer, epoch=1, best=np.float64(0.5))
    laconic.checkpoint(folder, model, optimizer, epoch=2, best=[np.float32(0.25)])
    with pytest.raises(laconic.ContractError, match="cannot hold where=PosixPath"):
        laconic.checkpoint(folder, model, optimizer, epoch=3, where=Path(folder))
    extras = laconic.resume(folder, model, optimizer)
    return sorted(p.name for p in Path(folder).iterdir() if p.is_dir()), extras


def test_saving_twice_at_one_step_keeps_the_last_whole_one(pool: Pool, tmp_path: Path) -> None:
    for folders, extras in pool.run(twice_at_one_step, str(tmp_path)):
        assert "step-000000000-1" in folders and "step-by-step-notes" in folders
        assert extras == {"epoch": 2, "best": [0.25]}


class Backwards(nn.Module):
    """Registered in another order than it runs in, so that messages are planned anew after the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(16, 5), nn.Linear(12, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def resumes_a_map(member: PoolRank, folder: str) -> bool:
    toys.register()

    def begin() -> Any:
        torch.manual_seed(3)
        model = Backwards()
        strategy = "{matrix: toy_topk(0.05)+ef, else: bf16+ef}"
        return laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)

    model, optimizer = begin()
    for step in range(8):
        plain_step(model, optimizer, member.rank, step)
        if step == 3:
            laconic.checkpoint(folder, model, optimizer)
    whole = values(model)
    model, optimizer = begin()
    laconic.resume(folder, model, optimizer)
    for step in range(4, 8):
        plain_step(model, optimizer, member.rank, step)
    return torch.equal(whole, values(model))


def test_each_partitions_memory_comes_back_to_it(pool: Pool, tmp_path: Path) -> None:
    assert pool.run(resumes_a_map, str(tmp_path)) == [True, True]


def test_a_samplers_position_is_resumed() -> None:
    data = TensorDataset(torch.arange(20))
    sampler = laconic.ShardSampler(data, seed=4)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    seen: list[list[int]] = []
    saved: dict[str, int] = {}
    for _ in range(2):
        for (items,) in loader:
            seen.append(items.tolist())
            if len(seen) == 7:
                saved = sampler.state_dict()
    first, second = torch.tensor(seen[:5]), torch.tensor(seen[5:])
    assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist()) == list(range(20))
    assert not torch.equal(first, second)
    other = laconic.ShardSampler(data, seed=4)
    other.load_state_dict(saved)
    rest = [items.tolist() for (items,) in DataLoader(data, batch_size=4, sampler=other)]
    assert rest == seen[7:]
