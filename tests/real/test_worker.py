"""The real engine's group operations: each is the relation it should be, and counts its bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from laconic.real.connect import connect
from laconic.real.staged_group import StagedGroup
from laconic.worker import Kind
from tests.real.pool import Pool, PoolRank


def everyone(member: PoolRank, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """What all members hold, known to each: [size, *shape] of random integers."""
    draw = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randint(-1000, 1000, (member.size, *shape), generator=draw).to(dtype)


class AllStaged(StagedGroup):
    """A group whose CPU tensors take the way of CUDA tensors too."""

    def stages(self, tensor: torch.Tensor) -> bool:
        return True


def relations(member: PoolRank, length: int, staged: bool = False) -> None:
    worker: Any = connect()
    group = AllStaged(worker, member.process_group) if staged else worker.adopt(member.process_group)
    rank, size = member.rank, member.size
    assert (group.rank, group.size, group.ranks) == (rank, size, tuple(range(size)))
    held = everyone(member, (length,))
    assert torch.equal(group.all_reduce(held[rank].clone()).wait(), held.sum(0))
    assert torch.equal(group.all_reduce(held[rank].clone(), op="max").wait(), held.amax(0))
    assert torch.equal(group.all_gather(held[rank]).wait(), held)
    for root in range(size):
        assert torch.equal(group.broadcast(held[rank].clone(), root).wait(), held[root])
    blocks = everyone(member, (size, length))
    assert torch.equal(group.all_to_all(blocks[rank].reshape(-1)).wait(), blocks[:, rank].reshape(-1))
    assert torch.equal(group.reduce_scatter(blocks[rank]).wait(), blocks.sum(0)[rank])
    ragged = everyone(member, (size * (size + 1) // 2,))  # member k gets k + 1 elements from everyone
    starts = [k * (k + 1) // 2 for k in range(size + 1)]
    expected = torch.cat([ragged[r, starts[rank] : starts[rank + 1]] for r in range(size)])
    lengths = [k + 1 for k in range(size)]
    assert torch.equal(group.all_to_all(ragged[rank], lengths, [rank + 1] * size).wait(), expected)
    handles: list[Any] = [group.receive(torch.empty_like(held[0]), r, tag=5) for r in range(size) if r != rank]
    for r in range(size):
        if r != rank:
            group.send(held[rank], r, tag=5).wait()
    others = [held[r] for r in range(size) if r != rank]
    assert all(torch.equal(h.wait(), x) for h, x in zip(handles, others, strict=True))
    group.barrier().wait()


@pytest.mark.parametrize("workers", [1, 3])
def test_operations_on_copies_are_their_relations(pool: Pool, workers: int) -> None:
    """What CUDA tensors do where gloo is all there is; here the copies are of CPU tensors."""
    pool.run(relations, 17, True, workers=workers)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 17, 1000])
def test_operations_are_their_relations(pool: Pool, workers: int, length: int) -> None:
    pool.run(relations, length, workers=workers)


def sent_by(member: PoolRank, operation: str) -> float:
    worker = connect()
    group = worker.adopt(member.process_group)  # type: ignore[attr-defined]
    before = worker.ledger.sent_bytes(), worker.ledger.sent_bytes(Kind.CONTROL)
    getattr(group, operation)(torch.ones(1200), control=1.0).wait()
    sent = worker.ledger.sent_bytes() - before[0]
    assert worker.ledger.sent_bytes(Kind.CONTROL) - before[1] == pytest.approx(sent)
    return sent


@pytest.mark.parametrize(
    ("operation", "total"),
    [
        ("all_reduce", lambda n: 2 * (n - 1)),
        ("all_gather", lambda n: n * (n - 1)),
        ("all_to_all", lambda n: n - 1),
        ("reduce_scatter", lambda n: n - 1),
        ("broadcast", lambda n: n - 1),
    ],
)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_ledger_counts_what_the_algorithm_sends(pool: Pool, operation: str, total: Any, workers: int) -> None:
    """Of 4,800 bytes in each worker's hands; `bench/ledger.py` holds the same against the interface counter."""
    assert sum(pool.run(sent_by, operation, workers=workers)) == pytest.approx(4800 * total(workers))


def subgroups(member: PoolRank) -> float:
    worker = connect()
    pairs = [worker.group(ranks) for ranks in ((0, 1), (2, 3))]
    mine = pairs[worker.rank // 2]
    assert worker.group((0, 1)) is pairs[0], "a group is made once"
    return float(mine.all_reduce(torch.tensor([float(worker.rank)])).wait())


def test_groups_are_apart(pool: Pool) -> None:
    assert pool.run(subgroups, workers=4) == [1.0, 1.0, 5.0, 5.0]
