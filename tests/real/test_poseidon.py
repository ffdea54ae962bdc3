"""Poseidon between processes, against a synchronous server on the virtual engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import laconic
from tests.compression.test_poseidon import POSEIDON, network, trained
from tests.real.pool import Pool, PoolRank
from tests.real.test_against_ddp import batch


def stepped(member: PoolRank, strategy: str, steps: int) -> Tensor:
    model = network()
    user = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = laconic.distribute(model, user, strategy, process_group=member.process_group)
    for step in range(steps):
        x, y = batch(member.rank, step)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.technique("poseidon", check=3)
@pytest.mark.parametrize("steps", [1, 5])
def test_a_step_of_four_processes_is_a_synchronous_servers(pool: Pool, steps: int) -> None:
    ends = pool.run(stepped, POSEIDON, steps, workers=4)
    assert all(torch.equal(end, ends[0]) for end in ends)
    torch.testing.assert_close(ends[0], trained("bsp / none / ps(shards=4)", steps), rtol=1e-5, atol=1e-6)
