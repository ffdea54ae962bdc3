"""Programs between real processes: sums are exact for integers, and have the virtual workers' bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.collective.generators import generators, make_program
from laconic.errors import ProgramError
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.worker import Group
from tests.real.launching import START_SECONDS, Launched
from tests.real.pool import Pool, PoolRank


def inputs(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(100 + rank))


def summed(group: Group, x: Tensor, name: str) -> Tensor:
    exchange: Any = InFlight(group.run(make_program(name, group.size, 1), x))
    complete([exchange])
    return x


def all_programs(group: Group, numel: int) -> dict[str, Tensor]:
    """Each program's sum of floats, after its sum of integers was seen to be exact."""
    found = {}
    for one in generators("all_reduce"):
        try:
            make_program(one.name, group.size, 1)
        except ProgramError:
            continue
        whole = [torch.arange(numel) * (rank + 1) for rank in range(group.size)]
        assert torch.equal(summed(group, whole[group.rank].clone(), one.name), sum(whole)), one.name
        found[one.name] = summed(group, inputs(group.rank, numel), one.name)
    return found


def on_processes(member: PoolRank, numel: int) -> dict[str, Tensor]:
    return all_programs(connect().adopt(member.process_group), numel)  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_programs_between_processes_have_the_bits_of_virtual_workers(pool: Pool, workers: int) -> None:
    real = pool.run(on_processes, 1001, workers=workers)
    virtual = laconic.simulate(lambda: all_programs(connect().world, 1001), workers).results
    for rank in range(workers):
        assert real[rank].keys() == virtual[rank].keys() and len(real[rank]) > 10
        for name, values in real[rank].items():
            assert torch.equal(values, virtual[rank][name]) and torch.equal(values, real[0][name]), name
            torch.testing.assert_close(values, sum(inputs(r, 1001) for r in range(workers)), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.technique("gloo", check=1)
def test_programs_among_up_to_eight_processes_agree_with_gloos_own(tmp_path: Path) -> None:
    """Integers exactly, floats to rounding, and all ranks have the same bits."""
    script = Path(__file__).parent / "scripts" / "programs.py"
    launched = Launched(tmp_path / "run", "--workers", "8", script=script)
    assert launched.exit_code(4 * START_SECONDS) == 0, launched.console
    agreed = [int(re.findall(r"(\d+) programs agree", launched.log(rank))[0]) for rank in range(8)]
    assert agreed[0] > 45 and agreed[7] > 12
