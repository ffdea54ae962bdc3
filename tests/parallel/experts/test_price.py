"""What the messages of a layer of experts take, against the virtual clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.collective.exchanges import pairwise
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.parallel.device_groups import groups_of
from laconic.parallel.experts.exchange import Exchange
from laconic.parallel.experts.layer import MixtureOfExperts
from laconic.parallel.experts.price import even_rows, expert_seconds, message_bytes
from laconic.parallel.experts.routing import choose
from laconic.parallel.experts.shard import shard_experts
from laconic.real.connect import connect

WIDTH, EXPERTS, TOKENS, DEVICES, TOP = 16, 8, 32, 4, 2
NETWORKS = {
    "a switch": Network.flat(DEVICES, 1e6, latency_seconds=2e-3),
    "two hosts": Network(DEVICES, (Level(1, 1e7, 1e-4), Level(2, 1e6, 3e-3))),
}


def layer() -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(nn.Linear(WIDTH, EXPERTS), [nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)], TOP)


def tokens(device: int) -> torch.Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(device))


@pytest.mark.parametrize("codes", [("none", "none"), ("int8(64)", "cast_bf16")])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_virtual_clock_agrees_with_the_price(network: str, codes: tuple[str, str]) -> None:
    forward, backward = codes

    def device() -> tuple[float, float]:
        mesh = laconic.init_device_mesh("cpu", (DEVICES,), mesh_dim_names=("ep",))
        cut = shard_experts(layer(), mesh, forward=forward, backward=backward)
        x = tokens(laconic.rank()).requires_grad_()
        clock = connect().clock_seconds
        output = cut(x)
        after = clock()
        output.sum().backward()
        return after, clock()

    measured = laconic.simulate(device, DEVICES, network=NETWORKS[network]).results
    router = layer().router
    experts = [choose(router(tokens(d)), TOP).experts.flatten() // (EXPERTS // DEVICES) for d in range(DEVICES)]
    rows = np.stack([np.bincount(e.numpy(), minlength=DEVICES) for e in experts])
    priced = expert_seconds(NETWORKS[network], rows, WIDTH, EXPERTS, TOP, forward=forward, backward=backward)
    ahead, both = (max(times) for times in zip(*measured, strict=True))
    # the second all-to-all begins on some devices before the first has ended on others
    assert ahead == pytest.approx(priced.counts + priced.forward, rel=0.05)
    assert both == pytest.approx(priced.total, rel=0.05)


@pytest.mark.parametrize("rows", [[[1, 9, 4], [2, 3, 30], [8, 8, 8]], even_rows(3, 40, 1).round()])
def test_one_way_takes_what_the_program_of_a_pairwise_all_to_all_does(rows: Any) -> None:
    """In each step a device sends to one other and receives from one, and begins the next when both have ended."""
    table, network = np.asarray(rows, dtype=int), Network.flat(3, 1e6, latency_seconds=2e-3)

    def device() -> float:
        mesh = laconic.init_device_mesh("cpu", (3,), mesh_dim_names=("ep",))
        exchange, rank = Exchange(connect(), groups_of(mesh)["ep"], {}), laconic.rank()
        exchange(torch.ones(int(table[rank].sum()), WIDTH), table[rank].tolist(), table[:, rank].tolist(), "rows", 0)
        return connect().clock_seconds()

    program = replace(pairwise(3), shares=4.0 * WIDTH * table.ravel())
    measured = max(laconic.simulate(device, 3, network=network).results)
    assert measured == pytest.approx(price(program, 1.0, network).seconds, rel=1e-6)
    there = expert_seconds(network, table, WIDTH, EXPERTS, TOP).forward
    back = price(replace(program, shares=4.0 * WIDTH * table.T.ravel()), 1.0, network).seconds
    assert there == pytest.approx(measured + back)


def test_bytes_of_messages() -> None:
    assert message_bytes([[0, 3], [5, 0]], 10).tolist() == [[0, 120], [200, 0]]
    assert message_bytes([[0, 3], [5, 0]], 10, "cast_bf16").tolist() == [[0, 60], [100, 0]]
    with pytest.raises(LaconicError, match="square"):
        expert_seconds(NETWORKS["a switch"], [[1, 2]], 4, 2, 1)
