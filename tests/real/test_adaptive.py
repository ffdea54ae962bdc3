"""All-reduces chosen by probing real processes: all find the same, take the same program, and sum exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from laconic.collective.adaptive import WINDOW, Adaptive
from laconic.launch.collective_run import Outcome, Task, carry_out
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from tests.cases import first_of
from tests.real.pool import Pool, PoolRank


def summed(member: PoolRank) -> tuple[bytes, list[str], int]:
    group: Any = connect().adopt(member.process_group)  # type: ignore[attr-defined]
    one = Adaptive.of(group, "auto")
    total = group.size * (group.size + 1) // 2
    for numel in [5, 3000, 100_001] * (WINDOW // 3 + 2):
        vectors = [torch.arange(n) * (group.rank + 1) for n in (numel, 7)]
        complete([InFlight(one.sum(x)) for x in vectors])  # type: ignore[arg-type]
        assert all(torch.equal(x, torch.arange(len(x)) * total) for x in vectors)
    found = one._measured
    assert found is not None and found.probe.latency_seconds[0, 1] > 0
    return found.table.tobytes(), [str(one.choice(8 * n)) for n in (5, 3000, 100_001)], one.probes


@pytest.mark.parametrize("workers", first_of([2, 3, 4], 1))
def test_processes_probe_alike_and_take_the_same_program(pool: Pool, workers: int) -> None:
    found = pool.run(summed, workers=workers)
    assert all(one == found[0] for one in found) and found[0][2] >= 1


def carried_out(member: PoolRank, task: Task) -> Outcome:
    worker: Any = connect()
    return carry_out(task, worker.adopt(member.process_group), worker.ledger.sent_bytes)


def test_a_program_is_measured_between_processes_and_on_virtual_workers(pool: Pool) -> None:
    task = Task("halving_doubling", 4, 1, 8 * 1001, 2)
    real = pool.run(carried_out, task, workers=4)
    assert all(one.exact and one.seconds == real[0].seconds and len(one.seconds) == 2 for one in real)

    def work() -> Outcome:
        worker = connect()
        return carry_out(task, worker.world, worker.ledger.sent_bytes)

    virtual = laconic.simulate(work, 4, network="1Gbit").results[0]
    assert virtual.exact and virtual.median_seconds == pytest.approx(virtual.probed_seconds, rel=0.02)
    assert real[0].sent_bytes == virtual.sent_bytes
    assert sum(virtual.sent_bytes) == 2 * 3 * 8 * 1001
