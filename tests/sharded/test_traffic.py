"""What the planner promises of a step's bytes is what the ledger counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.architecture.sharded import (
    ShardedMethod,
    sdp4bit,
    zero_plus_plus,
    zero_sharded_dp,
    zeropp_hpz,
    zeropp_qgz,
    zeropp_qwz,
)
from laconic.runtime.sharded.layout import ShardLayout
from laconic.runtime.sharded.traffic import Hosts, module_traffic
from laconic.worker import Kind
from tests.cases import first_of
from tests.real.pool import Pool, PoolRank
from tests.sharded.training import blocks, steps_of

METHODS: dict[str, tuple[str, Callable[[], ShardedMethod]]] = {
    "stage 2": ("zero", partial(zero_sharded_dp, 2)),
    "stage 3": ("zero", zero_sharded_dp),
    "int8 weights": ("zeropp_qwz", zeropp_qwz),
    "4-bit gradients": ("zeropp_qgz", zeropp_qgz),
    "4-bit differences": ("sdp4bit", sdp4bit),
}


def sent_in_a_step(name: str, method: ShardedMethod, hosts: Hosts, seed: int) -> float:
    """Train on this worker and return the payload bytes that it sends in a step after the first two."""
    mesh: Any = laconic.init_device_mesh("cpu", (hosts.across, hosts.inside), mesh_dim_names=("host", "node"))
    flat = mesh._flatten("all")
    model: Any = blocks(seed)
    for block in list(model)[:3]:
        fully_shard(block, mesh=flat, reshard_after_forward=method.reshard_after_forward)
    model = fully_shard(model, mesh=flat, reshard_after_forward=method.reshard_after_forward)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, name, mesh=mesh if hosts.across > 1 else flat)
    ledger, counted = optimizer.session.worker.ledger, []
    steps_of(model, optimizer, 4, laconic.rank(), lambda step: counted.append(ledger.sent_bytes(Kind.PAYLOAD)))
    assert counted[3] - counted[2] == counted[2] - counted[1]
    return counted[3] - counted[2]


def promised(method: ShardedMethod, hosts: Hosts) -> float:
    model = blocks()
    parts = [list(block.parameters()) for block in model]
    layouts = [ShardLayout(tuple(tuple(p.shape) for p in ps), (0,) * len(ps), hosts.workers) for ps in parts]
    return sum(module_traffic(method, layout.numel, hosts).sent_bytes for layout in layouts)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("hosts", "seed"), first_of([(Hosts(2, 2), 2), (Hosts(2), 0), (Hosts(4), 1)], 1))
def test_promised_bytes_are_those_that_the_ledger_counts(name: str, hosts: Hosts, seed: int) -> None:
    word, make = METHODS[name]
    expected = promised(make(), hosts)
    for found in laconic.simulate(lambda: sent_in_a_step(word, make(), hosts, seed), hosts.workers).results:
        assert found == expected


def of_a_process(member: PoolRank, name: str, method: ShardedMethod, hosts: Hosts) -> float:
    return sent_in_a_step(name, method, hosts, seed=3)


@pytest.mark.parametrize(("name", "make"), [("zeropp_hpz", zeropp_hpz), ("zero_plus_plus", zero_plus_plus)])
def test_slices_inside_hosts_are_sent_as_promised(name: str, make: Callable[[int], ShardedMethod], pool: Pool) -> None:
    """In processes: PyTorch makes the mesh of the slices itself, which needs a process group."""
    hosts = Hosts(2, 2)
    method = make(hosts.inside)
    assert pool.run(of_a_process, name, method, hosts, workers=4) == [promised(method, hosts)] * 4


@pytest.mark.parametrize("make", [zeropp_hpz, zero_plus_plus])
def test_slices_for_all_workers_are_none(make: Callable[[int], ShardedMethod]) -> None:
    """As PyTorch reads them: slices for as many as there are owners are stage 3's, slices for one are stage 2's."""
    for host, reshard in ((4, True), (1, False)):
        plain = replace(make(8), reshard_after_forward=reshard)
        assert module_traffic(make(host), 4096, Hosts(4)) == module_traffic(plain, 4096, Hosts(4))


def test_replicas_average_shards_between_hosts() -> None:
    numel, hosts = 3 * 4 * 64, Hosts(4, 3)
    found = module_traffic(zero_sharded_dp(), numel, hosts, replicated=True)
    inside, across = 3 * 3 / 4 * numel * 4, 2 * 2 / 3 * numel / 4 * 4
    assert found.sent_bytes == inside + across
    assert found.leaving_bytes(hosts) == 4 * across


def test_what_leaves_a_host_falls_as_published() -> None:
    """Of 3 M in 16 bits (weights twice, gradients), hpZ leaves 2 M and ZeRO++ 0.75 M (Wang et al., 2023)."""
    numel, hosts = 1 << 24, Hosts(8, 32)
    model_bytes = 2 * numel
    for method, share in ((zero_sharded_dp(), 3), (zeropp_hpz(), 2), (zero_plus_plus(), 0.75)):
        found = module_traffic(method, numel, hosts, torch.bfloat16).leaving_bytes(hosts)
        assert found == pytest.approx(share * model_bytes, rel=0.04), "scales, and the host's own shards"
    for shape in (hosts, Hosts(8, 2), Hosts(4, 2), Hosts(2, 2)):
        dense, coded = (
            module_traffic(m, numel, shape, torch.bfloat16) for m in (zero_sharded_dp(), zero_plus_plus(shape.inside))
        )
        assert dense.leaving_bytes(shape) > 3.8 * coded.leaving_bytes(shape)


@pytest.mark.parametrize(
    ("chain", "bytes_a_value"), [("none", 0), ("strided_bits(4, 128)+ef", 4), ("strided_bits(4, 128)+loco", 1)]
)
def test_error_memories_are_of_the_whole_gradient(chain: str, bytes_a_value: int) -> None:
    numel = 1 << 16
    found = module_traffic(ShardedMethod(alone=chain), numel, Hosts(8))
    assert found.error_bytes == pytest.approx(bytes_a_value * numel, rel=0.01)


def test_copies_of_weights_are_in_their_own_type() -> None:
    numel = 1 << 16
    assert module_traffic(sdp4bit(), numel, Hosts(8), torch.bfloat16).copy_bytes == 2 * numel
    assert module_traffic(zeropp_hpz(4), numel, Hosts(4, 2), torch.bfloat16).copy_bytes == 2 * numel / 4
