"""The times of sharded messages are those of the virtual engine, which runs the same ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.architecture.sharded import Sharding, shardings
from laconic.network.network_tree import Level, Network
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.planner.sharded import ShardedPricer
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime
from tests.sharded.training import blocks, steps_of

NONE = Seconds(1e-12, 1e-12, 1e-12, samples=0)
FLAT = Network.flat(4, 1e8, 2e-4, lanes=1)
HOSTS = Network(4, (Level(1, 1e9, 1e-4), Level(2, 1e8, 5e-4)), lanes=1)


def deployment(network: Network) -> Deployment:
    """The blocks of a small training, whose computing takes no time."""
    named = reversed(list(blocks().named_parameters()))
    tensors = tuple(TensorTime(name, tuple(p.shape), "float32", 1e-15) for name, p in named)
    return Deployment(Profile(ModelTimes(tensors, NONE, NONE, NONE), optimizer="adam"), network, 4)


def step_seconds(way: Sharding, inside: int) -> float:
    """Train on this worker; return the virtual seconds of a step after the first two."""
    mesh: Any = laconic.init_device_mesh("cpu", (4 // inside, inside), mesh_dim_names=("host", "node"))
    flat = mesh._flatten("all")
    model: Any = blocks()
    for part in (*model, model):
        fully_shard(part, mesh=flat, reshard_after_forward=way.method.reshard_after_forward)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, way.strategy, mesh=flat if inside == 4 else mesh)
    worker, begun = optimizer.session.worker, []
    steps_of(model, optimizer, 4, laconic.rank(), lambda step: begun.append(worker.clock_seconds()))
    return float(begun[3] - begun[2])


@pytest.mark.long
@pytest.mark.parametrize("title", ["ZeRO stage 2", "ZeRO stage 3", "ZeRO++ qwZ", "ZeRO++ qgZ", "SDP4Bit"])
def test_messages_take_as_long_as_on_the_virtual_engine(title: str) -> None:
    way, pricer = way_of(title, 4), ShardedPricer(Pricer(deployment(FLAT)))
    expected = pricer.step(way, pricer.traffic(way)).serial_seconds()
    found = laconic.simulate(lambda: step_seconds(way, 4), 4, FLAT).results
    assert max(found) == pytest.approx(expected, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("title", "longer"), [("ZeRO stage 2", 1.05), ("SDP4Bit", 1.05), ("ZeRO stage 3", 1.17), ("ZeRO++ qgZ", 1.17)]
)
def test_messages_inside_and_between_hosts_overlap_on_the_engine(title: str, longer: float) -> None:
    """On the engine one module's gradients go between hosts while another's go inside them (4 % shorter), and a gather
    among all may begin during a scatter across (12 to 15 %, where messages are this small and latencies count); the
    planner serves one after the other."""
    way, pricer = way_of(title, 2), ShardedPricer(Pricer(deployment(HOSTS)))
    expected = pricer.step(way, pricer.traffic(way)).serial_seconds()
    found = max(laconic.simulate(lambda: step_seconds(way, 2), 4, HOSTS).results)
    assert found <= expected <= longer * found


def way_of(title: str, inside: int) -> Sharding:
    return next(way for way in shardings(inside, 4 // inside) if way.title == title)
