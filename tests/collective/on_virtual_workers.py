"""Programs carried out on virtual workers, on vectors or on blocks of any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import laconic
from laconic.collective.execute import execute_blocks
from laconic.collective.program import Program
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete


def integers(numel: int, rank: int, seed: int = 0) -> Tensor:
    """A rank's vector of random integers."""
    return torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(100 * seed + rank))


def all_sums(program: Program, vectors: Sequence[Tensor]) -> list[Tensor]:
    """What each rank's vector is after an all-reduce."""

    def work() -> Tensor:
        worker = connect()
        x = vectors[worker.rank].clone()
        exchange: Any = InFlight(worker.world.run(program, x))
        complete([exchange])
        return x

    return laconic.simulate(work, program.size).results


def after(program: Program, given: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """What each rank has after a program on these chunks, whose numbers of elements are `counts`."""

    def work() -> Tensor:
        worker = connect()
        exchange: Any = InFlight(execute_blocks(program, given[worker.rank].clone(), counts, worker.world))
        complete([exchange])
        return exchange.result

    return laconic.simulate(work, program.size).results


def assert_sums(program: Program, numel: int = 37) -> None:
    """Integers are summed exactly at every rank, and floats to the same bits at all ranks."""
    vectors = [integers(numel, rank) for rank in range(program.size)]
    expected = torch.stack(vectors).sum(0)
    assert all(torch.equal(x, expected) for x in all_sums(program, vectors))
    found = all_sums(program, [x.float() / 7 for x in vectors])
    assert all(torch.equal(x, found[0]) for x in found)
    torch.testing.assert_close(found[0], expected.float() / 7, rtol=0, atol=1e-3)
