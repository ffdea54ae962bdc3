"""ZeRO++'s hpZ: backward gathers slices inside hosts, with the bits of stage 3."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import laconic
from laconic.worker import Kind
from tests.real.handed_over import HandedOver
from tests.real.pool import Pool, PoolRank
from tests.sharded.references import whole_of
from tests.sharded.training import blocks, sharded, steps_of

HOST = 2  # workers of a host; the pool's four are two hosts


def prepared(strategy: str, reshard: bool | int, seed: int) -> tuple[Any, Any]:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    model: Any = sharded(mesh, seed, reshard_after_forward=reshard)
    return laconic.distribute(model, torch.optim.AdamW(model.parameters(), lr=1e-2), strategy)


def after_steps(member: PoolRank, strategy: str, reshard: bool | int, seed: int) -> tuple[list[float], list[Tensor]]:
    model, optimizer = prepared(strategy, reshard, seed)
    losses = steps_of(model, optimizer, 100, member.rank)
    return losses, whole_of(model)


@pytest.mark.long
@pytest.mark.technique("zeropp_hpz", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_parameters_after_a_hundred_steps_have_the_bits_of_stage_three(pool: Pool, seed: int) -> None:
    ours = pool.run(after_steps, "zeropp_hpz", HOST, seed, workers=4)
    stage_three = pool.run(after_steps, "zero", True, seed, workers=4)
    start = list(blocks(seed).parameters())
    for (losses, found), (expected_losses, expected) in zip(ours, stage_three, strict=True):
        assert losses == expected_losses and losses[-1] < 0.9 * losses[0]
        for a, b, c in zip(found, expected, start, strict=True):
            assert torch.equal(a, b) and not torch.equal(a, c)


def sent(member: PoolRank, strategy: str, reshard: bool | int) -> dict[str, int]:
    """The bytes that this process sends in the second step, to its host and to the other one."""
    model, optimizer = prepared(strategy, reshard, seed=2)
    steps_of(model, optimizer, 1, member.rank)
    with HandedOver() as counted:
        steps_of(model, optimizer, 1, member.rank)
    host = range(member.rank // HOST * HOST, (member.rank // HOST + 1) * HOST)
    places = {"inside": host, "across": [rank for rank in range(4) if rank not in host]}
    found = {where: counted.total(to=ranks) for where, ranks in places.items()}
    for where, ranks in places.items():
        found[f"forward gather {where}"] = counted.total("gather", False, ranks)
        found[f"backward gather {where}"] = counted.total("gather", True, ranks)
    return found


def short(mesh: Any, rank: int, strategy: str) -> tuple[list[float], float]:
    """The losses of some steps with slices inside hosts, and the payload bytes that a worker sent."""
    model: Any = sharded(mesh, reshard_after_forward=HOST)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    ledger = optimizer.session.worker.ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    return steps_of(model, optimizer, 3, rank), ledger.sent_bytes(Kind.PAYLOAD) - before


def short_on_processes(member: PoolRank, strategy: str) -> tuple[list[float], float]:
    return short(init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)), member.rank, strategy)


@pytest.mark.parametrize("strategy", ["zeropp_hpz", "zero_plus_plus"])
def test_virtual_workers_with_slices_have_the_bits_and_bytes_of_processes(pool: Pool, strategy: str) -> None:
    def virtual() -> tuple[list[float], float]:
        return short(laconic.init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)), laconic.rank(), strategy)

    assert pool.run(short_on_processes, strategy, workers=4) == laconic.simulate(virtual, 4).results


@pytest.mark.technique("zeropp_hpz", check=2)
def test_the_gather_of_backward_stays_inside_hosts(pool: Pool) -> None:
    padded = 4 * sum(-(-p.shape[0] // 4) * 4 * p[0].numel() for p in blocks().parameters())  # bytes of all weights
    for ours, stage_three in zip(
        pool.run(sent, "zeropp_hpz", HOST, workers=4), pool.run(sent, "zero", True, workers=4), strict=True
    ):
        assert ours["forward gather across"] == stage_three["forward gather across"] == padded // 4 * 2
        assert stage_three["backward gather across"] == padded // 4 * 2
        assert ours["backward gather across"] == 0
        assert 3 * ours["across"] == 2 * stage_three["across"]
        assert ours["backward gather inside"] == padded // HOST  # half of the weights, to the one who has the other
        assert ours["inside"] - stage_three["inside"] == padded // HOST - padded // 4


def sent_in_16_bits(member: PoolRank, strategy: str, reshard: bool | int, hops: bool) -> int:
    """The bytes that this process sends to the other host in the second step, where PyTorch computes and communicates
    in bfloat16."""
    hosts = init_device_mesh("cpu", (2, HOST), mesh_dim_names=("across", "inside"))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    torch.manual_seed(0)
    model: Any = nn.Sequential(*(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(2)))
    for part in (*model, model):
        fully_shard(part, mesh=hosts._flatten("all"), mp_policy=half, reshard_after_forward=reshard)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, strategy, mesh=hosts if hops else None)
    for step in range(2):
        with HandedOver() as counted:
            x = torch.randn(4, 256, generator=torch.Generator().manual_seed(10 * step + member.rank))
            (model(x).float() - x).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
    other = [rank for rank in range(4) if rank // HOST != member.rank // HOST]
    return counted.total(to=other)


@pytest.mark.parametrize("hops", [False, True])
def test_zero_plus_plus_with_slices_sends_a_quarter_of_16_bits_to_the_other_host(pool: Pool, hops: bool) -> None:
    """Counted at the backend: a gather in eight bits and gradients in four, in the place of sixteen three times; of
    gradients that are summed in their host before, half as many cross."""
    dense = pool.run(sent_in_16_bits, "zero", True, False, workers=4)
    coded = pool.run(sent_in_16_bits, "zero_plus_plus", HOST, hops, workers=4)
    for in_16_bits, in_fewer in zip(dense, coded, strict=True):
        assert in_16_bits >= (4.6 if hops else 3.8) * in_fewer


def advice(member: PoolRank, reshard: bool | int) -> str:
    hosts = {"LOCAL_WORLD_SIZE": str(HOST)}
    with patch.dict(os.environ, hosts), contextlib.redirect_stderr(io.StringIO()) as said:
        prepared("zero_plus_plus", reshard, seed=0)
    return said.getvalue()


def test_a_method_with_slices_says_so_where_backward_gathers_from_other_hosts(pool: Pool) -> None:
    assert "fully_shard(part, reshard_after_forward=2)" in pool.run(advice, True, workers=4)[0]
    for reshard in (HOST, False):
        assert not any("hpZ" in said for said in pool.run(advice, reshard, workers=4))
