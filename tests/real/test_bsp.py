"""BSP's catalogue row, and the rows that are whole sentences of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import laconic
from laconic.worker import Kind
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import batch, mlp


def versus_one_worker(member: PoolRank, strategy: str, gradients_only: bool) -> float:
    """N workers with batch b against one worker with batch N·b on the same samples."""
    torch.manual_seed(7)
    model = mlp()
    alone = mlp()
    alone.load_state_dict(model.state_dict())
    single = sgd(alone.parameters())
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        p.data.copy_(q.data)
    for step in range(50):
        x, y = batch(member.rank, step)
        F.cross_entropy(model(x), y).backward()
        xs, ys = zip(*(batch(rank, step) for rank in range(member.size)), strict=True)
        F.cross_entropy(alone(torch.cat(xs)), torch.cat(ys)).backward()
        if gradients_only:
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            return max(float((p.grad - q.grad).norm() / q.grad.norm()) for p, q in pairs)
        for o in (optimizer, single):
            o.step()
            o.zero_grad()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((p - q).norm() / q.norm()) for p, q in pairs)


@pytest.mark.long
@pytest.mark.technique("bsp", check=1)
@pytest.mark.parametrize("strategy", ["bsp", "bsp / allreduce(rank)", "bsp_a2a", "wfbp_a2a"])
def test_many_workers_are_one_with_a_large_batch(pool: Pool, strategy: str) -> None:
    assert max(pool.run(versus_one_worker, strategy, False, workers=4)) <= 1e-5


@pytest.mark.technique("pytorch_ddp", check=3)
def test_gradients_are_those_of_the_whole_batch(pool: Pool) -> None:
    assert max(pool.run(versus_one_worker, "pytorch_ddp", True, workers=4)) <= 1e-6


def ring_bytes(member: PoolRank) -> tuple[float, int]:
    model = mlp()
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), "bsp_a2a", process_group=member.process_group)
    ledger = optimizer.session.worker.ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    x, y = batch(member.rank, 0)
    F.cross_entropy(model(x), y).backward()
    return ledger.sent_bytes(Kind.PAYLOAD) - before, sum(p.nbytes for p in model.parameters())


@pytest.mark.technique("bsp_a2a", check=2)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_an_all_reduce_sends_a_rings_bytes(pool: Pool, workers: int) -> None:
    for sent, weights in pool.run(ring_bytes, workers=workers):
        assert sent == pytest.approx(2 * (workers - 1) / workers * weights, abs=1e-6)


# ------------------------------------------------------------------------------------------------ 16-bit floats


def half_mean(member: PoolRank, value: float, seed: int) -> tuple[float, bool]:
    model = torch.nn.Linear(64, 8, bias=False)
    model, _ = laconic.distribute(
        model, torch.optim.SGD(model.parameters(), lr=1.0), "cast_fp16", process_group=member.process_group
    )
    draw = torch.Generator().manual_seed(seed)
    everyone = torch.rand(member.size, 8, 64, generator=draw) * value + value
    (model.weight * everyone[member.rank]).sum().backward()
    mean = everyone.mean(0)
    return float(((model.weight.grad - mean) / mean).abs().max()), bool(model.weight.grad.isfinite().all())


@pytest.mark.technique("cast_fp16", check=1)
@pytest.mark.parametrize("workers", [2, 4])
def test_half_precision_means_are_close(pool: Pool, workers: int) -> None:
    for seed in range(3):
        assert max(r[0] for r in pool.run(half_mean, 0.5, seed, workers=workers)) <= workers * 2**-11


@pytest.mark.technique("cast_fp16", check=2)
def test_large_values_survive_because_they_are_divided_first(pool: Pool) -> None:
    assert all(finite for _, finite in pool.run(half_mean, 3e4, 0, workers=4))
    assert not torch.tensor([6e4] * 4).half().sum(dtype=torch.float16).isfinite(), "undivided, the sum overflows"
