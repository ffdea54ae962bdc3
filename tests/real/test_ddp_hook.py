"""Any compressor inside existing DDP code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.worker import Kind
from tests import toys
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import mlp, plain_step


def hooked(member: PoolRank, sentence: str | None, steps: int = 10) -> tuple[torch.Tensor, float]:
    from laconic.real.connect import connect

    toys.register()
    torch.manual_seed(1)
    model = DistributedDataParallel(mlp(), process_group=member.process_group, bucket_cap_mb=0.001)
    if sentence is not None:
        model.register_comm_hook(member.process_group, laconic.ddp_hook(sentence))
    optimizer = sgd(model.parameters())
    before = connect().ledger.sent_bytes(Kind.PAYLOAD)
    for step in range(steps):
        plain_step(model, optimizer, member.rank, step)
    sent = connect().ledger.sent_bytes(Kind.PAYLOAD) - before
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sent / steps


def compared(member: PoolRank, sentence: str) -> tuple[float, float, bool]:
    plain, _ = hooked(member, None)
    ours, sent = hooked(member, sentence)
    rows = [torch.empty_like(ours) for _ in range(member.size)]
    torch.distributed.all_gather(rows, ours, group=member.process_group)
    return float((plain - ours).abs().max()), sent, all(torch.equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("sentence", ["none", "bsp / allreduce(rank)"])
def test_no_compression_has_ddps_bits(pool: Pool, sentence: str) -> None:
    assert [r[0] for r in pool.run(compared, sentence)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("sentence", "tolerance"), [("fp16", 1e-2), ("bf16+ef", 5e-2), ("toy_topk(1)", 1e-5), ("toy_power(32)+ef", 1e-4)]
)
@pytest.mark.parametrize("workers", [2, 4])
def test_compressors_run_inside_ddp(pool: Pool, sentence: str, tolerance: float, workers: int) -> None:
    for apart, _, equal in pool.run(compared, sentence, workers=workers):
        assert apart < tolerance and equal


def interrupted(member: PoolRank, sentence: str, folder: str) -> bool:
    """Training goes on from the hook's own state: with the error memory, and without it."""
    toys.register()

    def started() -> tuple[DistributedDataParallel, torch.optim.Optimizer, Any]:
        torch.manual_seed(1)
        model = DistributedDataParallel(mlp(), process_group=member.process_group, bucket_cap_mb=0.001)
        hook = laconic.ddp_hook(sentence)
        model.register_comm_hook(member.process_group, hook)
        return model, sgd(model.parameters()), hook

    model, optimizer, hook = started()
    file = f"{folder}/rank-{member.rank}.pt"
    for step in range(8):
        plain_step(model, optimizer, member.rank, step)
        if step == 3:
            torch.save([model.state_dict(), optimizer.state_dict(), hook.state_dict()], file)
    whole = [p.detach() for p in model.parameters()]
    same = []
    for with_memory in (True, False):
        model, optimizer, hook = started()
        of_model, of_optimizer, of_hook = torch.load(file, weights_only=True)
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        if with_memory:
            hook.load_state_dict(of_hook)
        for step in range(4, 8):
            plain_step(model, optimizer, member.rank, step)
        same.append(all(map(torch.equal, whole, model.parameters())))
    return same == [True, False]


@pytest.mark.parametrize("sentence", ["toy_topk(0.1)+ef", "toy_power(1)+ef"])
def test_the_error_memory_is_in_the_hooks_state(pool: Pool, tmp_path: Path, sentence: str) -> None:
    assert pool.run(interrupted, sentence, str(tmp_path)) == [True, True]


def test_a_hook_refuses_another_strategys_state() -> None:
    with pytest.raises(laconic.ContractError, match=r"of `bsp / cast_bf16\+.*the hook is `bsp / cast_fp16"):
        laconic.ddp_hook("fp16").load_state_dict(laconic.ddp_hook("bf16+ef").state_dict())


def test_bytes_inside_ddp(pool: Pool) -> None:
    elements = sum(p.numel() for p in mlp().parameters())
    for _, sent, _ in pool.run(compared, "fp16"):
        assert sent == 2 * elements


def test_a_hook_takes_what_ddp_leaves_open() -> None:
    with pytest.raises(laconic.StrategyError, match=r"laconic\.distribute"):
        laconic.ddp_hook("bsp until step 5, then fp16")
