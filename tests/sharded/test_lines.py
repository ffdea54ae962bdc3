"""The lines that a plan gives for sharding do what they say, as they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.architecture.sharded import Sharding, shardings
from tests.real.pool import Pool, PoolRank
from tests.sharded.training import blocks, steps_of

ONE_HOST = {way.title: way for way in shardings(4, 1)}
HOSTED = {way.title: way for way in shardings(2, 2) if way.title in ("HSDP", "ZeRO++ hpZ", "ZeRO++")}


def trained_by(member: PoolRank, line: str) -> tuple[list[float], int]:
    """Train as the lines say; return losses and the number of values of the first parameter that this worker owns."""
    model: Any = blocks()
    names = {"model": model, "blocks": list(model)[:3], "laconic": laconic, "fully_shard": fully_shard}
    names["optimizer"] = None
    before, _, last = line.rpartition("\n")
    exec(before, names)  # parameters change their type when they are sharded: the optimizer is made after that
    names["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-2)
    exec(last, names)
    model, optimizer = names["model"], names["optimizer"]
    losses = steps_of(model, optimizer, 3, member.rank)
    return losses, next(model.parameters()).to_local().numel()


@pytest.mark.long
@pytest.mark.parametrize(
    "way", [*ONE_HOST.values(), *HOSTED.values()], ids=[*ONE_HOST, *(f"hosts {t}" for t in HOSTED)]
)
def test_the_lines_of_a_plan_train(way: Sharding, pool: Pool) -> None:
    hosted = way in HOSTED.values()
    line = way.line(2, 2) if hosted else way.line(1, 4)
    results = pool.run(trained_by, line.replace('"cuda"', '"cpu"'), workers=4)
    first = next(blocks().parameters()).numel()
    assert sum(owned for _, owned in results) == (2 if way.replicated else 1) * first
    assert all(math.isfinite(loss) for losses, _ in results for loss in losses)
