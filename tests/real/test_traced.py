"""Traced programs between real processes: nobody is stuck, whoever is late, and all have the reference's result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.collective.lifting import lift
from laconic.collective.lowering import lower
from laconic.collective.program import Program
from laconic.collective.relation import all_reduce
from laconic.collective.tracing import traced
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.worker import Group
from tests.collective.traces import all_pairs, hierarchical, ring
from tests.real.pool import Pool, PoolRank

WRITTEN = {"ring": ring, "all pairs": all_pairs, "hierarchical": hierarchical}


def compiled(name: str, size: int) -> Program:
    """A traced program, lowered to instructions and read back from them."""
    return lift(lower(traced(name, all_reduce(size, size), WRITTEN[name])))


def inputs(rank: int, numel: int, seed: int) -> Tensor:
    return torch.randint(-999, 999, (numel,), generator=torch.Generator().manual_seed(10 * seed + rank))


def late(exchange: Any, draw: np.random.Generator) -> Any:
    """Carry an exchange out, with as much other work before each of its messages as is drawn."""
    answer = None
    while True:
        torch.linalg.eigvalsh(torch.eye(int(draw.integers(1, 150))))
        try:
            answer = yield exchange.send(answer)
        except StopIteration as stop:
            return stop.value


def summed(group: Group, name: str, numel: int, seed: int) -> Tensor:
    x = inputs(group.rank, numel, seed)
    draw = np.random.default_rng([seed, group.rank])
    exchange: Any = InFlight(late(group.run(compiled(name, group.size), x), draw))
    complete([exchange])
    return x


def on_processes(member: PoolRank, numel: int) -> dict[tuple[str, int], Tensor]:
    group = connect().adopt(member.process_group)  # type: ignore[attr-defined]
    return {(name, seed): summed(group, name, numel, seed) for name in WRITTEN for seed in range(6)}


@pytest.mark.technique("mscclang", check=2)
@pytest.mark.parametrize("numel", [3, 1001])
def test_compiled_programs_between_late_processes_equal_the_reference(pool: Pool, numel: int) -> None:
    real = pool.run(on_processes, numel, workers=4)
    for seed in range(6):
        reference = sum(inputs(rank, numel, seed) for rank in range(4))
        for name in WRITTEN:
            for rank in range(4):
                assert torch.equal(real[rank][name, seed], reference), (name, seed, rank)
