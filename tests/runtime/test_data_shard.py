"""A sampler's position is what the training loop has received, however far a loader's workers have fetched ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

import laconic

DATA = TensorDataset(torch.arange(22))
PREFETCHING: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4, "timeout": 60}


def loaded(sampler: laconic.ShardSampler, **options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, sampler=sampler, **{"batch_size": 4, **options})


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [items.view(-1).tolist() for (items,) in loader]


@pytest.mark.parametrize(
    "options",
    [{}, {"drop_last": True}, {"batch_size": None}, {"persistent_workers": True}],
    ids=["plain", "drop_last", "single items", "persistent workers"],
)
def test_a_run_with_loader_workers_resumes_at_the_next_batch(options: dict[str, Any]) -> None:
    in_process = {name: value for name, value in options.items() if name != "persistent_workers"}
    expected = batches(loaded(laconic.ShardSampler(DATA, seed=4), **in_process))
    whole = laconic.ShardSampler(DATA, seed=4)
    loader = loaded(whole, **PREFETCHING, **options)
    received = []
    for (items,) in loader:
        received.append(items.view(-1).tolist())
        if len(received) == 2:
            saved = whole.state_dict()
            break
    assert received == expected[:2]
    resumed = laconic.ShardSampler(DATA, seed=4)
    resumed.load_state_dict(saved)
    assert batches(loaded(resumed, **PREFETCHING, **options)) == expected[2:]
    assert (resumed.epoch, resumed.position) == (1, 0)


class OwnBatches(Sampler[list[int]]):
    def __init__(self, sampler: laconic.ShardSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([item] for item in self.sampler)


def test_batches_of_an_unknown_size_are_refused_where_workers_fetch_ahead() -> None:
    batches = OwnBatches(laconic.ShardSampler(DATA))
    with pytest.raises(laconic.ContractError, match="OwnBatches has no batch_size"):
        next(iter(DataLoader(DATA, batch_sampler=batches, num_workers=1)))
    assert sum(len(items) for (items,) in DataLoader(DATA, batch_sampler=batches)) == 22


def test_the_next_epoch_begins_where_the_loop_has_ended() -> None:
    sampler = laconic.ShardSampler(DATA, seed=4)
    loader = loaded(sampler, **PREFETCHING, persistent_workers=True)
    for epoch in range(2):
        seen = []
        for (items,) in loader:
            seen += items.tolist()
            assert (sampler.epoch, sampler.position) == (epoch, len(seen))
        assert sorted(seen) == list(range(22))
        assert (sampler.epoch, sampler.position) == (epoch + 1, 0)
