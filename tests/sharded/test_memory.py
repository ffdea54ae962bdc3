"""What a worker keeps in sharded training is what the planner promises of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.architecture.sharded import ShardedMethod, sdp4bit
from laconic.cost.sharded_memory import StateBytes, model_state
from laconic.runtime.sharded.layout import ShardLayout
from laconic.runtime.sharded.traffic import Hosts, ModuleTraffic, module_traffic
from tests.sharded.training import blocks, sharded, steps_of

LOCO, EF = "strided_bits(4, 128)+loco", "strided_bits(4, 128)+ef"


def promised(method: ShardedMethod, hosts: Hosts) -> list[ModuleTraffic]:
    parts = [list(block.parameters()) for block in blocks()]
    layouts = [ShardLayout(tuple(tuple(p.shape) for p in ps), (0,) * len(ps), hosts.workers) for ps in parts]
    return [module_traffic(method, layout.numel, hosts) for layout in layouts]


def kept(strategy: str, hosts: Hosts) -> tuple[int, int]:
    """Train on this worker; return the bytes of copies and of error memories that it keeps."""
    mesh: Any = laconic.init_device_mesh("cpu", (hosts.across, hosts.inside), mesh_dim_names=("host", "node"))
    flat = mesh._flatten("all")
    model: Any = sharded(flat)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, strategy, mesh=mesh if hosts.across > 1 else flat)
    steps_of(model, optimizer, 2, laconic.rank())
    state = optimizer.session.sockets.state_dict()
    errors = [x for memory in state["memory"] for entries in memory.values() for x in entries.values()]
    return sum(x.nbytes for x in state["copies"].values()), sum(x.nbytes for x in errors)


@pytest.mark.parametrize("hosts", [Hosts(3), Hosts(2, 2)], ids=["3", "2x2"])
@pytest.mark.parametrize("chain", [LOCO, EF])
def test_error_memories_are_as_large_as_promised(chain: str, hosts: Hosts) -> None:
    method = ShardedMethod(chain, chain, chain)
    text = method.gradients("node", "host") if hosts.several else method.gradients()
    expected = sum(traffic.error_bytes for traffic in promised(method, hosts))
    assert expected
    for _, errors in laconic.simulate(lambda: kept(text, hosts), hosts.workers).results:
        assert errors == expected


def test_copies_are_as_large_as_promised() -> None:
    hosts = Hosts(3)
    expected = sum(traffic.copy_bytes for traffic in promised(sdp4bit(), hosts))
    assert laconic.simulate(lambda: kept("sdp4bit", hosts), hosts.workers).results == [(expected, 0)] * 3


def even_blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)) for _ in range(3)))


def resident() -> int:
    """Train on this worker, and return the bytes of weights, gradients and optimizer states between steps."""
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model: Any = even_blocks()
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, "zero")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
    states = [x for entries in optimizer.state.values() for x in entries.values() if isinstance(x, Tensor)]
    mine = [*model.parameters(), *(p.grad for p in model.parameters()), *states]
    return sum(x.to_local().nbytes if hasattr(x, "to_local") else x.nbytes for x in mine)


@pytest.mark.parametrize("workers", [2, 4])
def test_a_worker_of_stage_3_keeps_its_share_of_the_state(workers: int) -> None:
    parameters = sum(p.numel() for p in even_blocks().parameters())
    expected = model_state(parameters, workers, 3, StateBytes.of(half=False, states=2)).state
    assert expected == 16 * parameters / workers
    for found in laconic.simulate(resident, workers).results:
        assert found == pytest.approx(expected, rel=0.02)
