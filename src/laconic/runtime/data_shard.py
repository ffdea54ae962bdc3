"""Each worker's part of the data: parts have equal lengths, so that every worker makes the same number of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import Dataset, Sampler, Subset

from laconic.errors import ContractError
from laconic.runtime.current_worker import rank, size

T = TypeVar("T")


def shard(dataset: Dataset[T] | Sequence[T], remainder: Literal["drop", "pad"] = "drop") -> Subset[T]:
    """Return this worker's items: every size-th one, beginning at its rank.

    - `dataset`: anything that has a length and gives items by number.
    - `remainder`: items that do not divide evenly are left out (`"drop"`), or the first ones are repeated (`"pad"`):
      the mean over workers is plain, as DDP's, and unequal lengths would leave some waiting in the last step.
    """
    try:
        total = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise ContractError("shard() needs a dataset with a length; slice a stream by laconic.rank()") from None
    if remainder not in ("drop", "pad"):
        raise ContractError(f'remainder is "drop" or "pad", not {remainder!r}')
    each = total // size() if remainder == "drop" else -(-total // size())
    if each == 0:
        raise ContractError(f"{total} items do not give each of {size()} workers one: use fewer workers")
    return Subset(dataset, [(rank() + k * size()) % total for k in range(each)])  # type: ignore[arg-type]


class ShardSampler(Sampler[int]):
    """A sampler that keeps order and position within a shard, so that a resumed run continues with the next unseen
    item.

    Use it as `DataLoader(part, batch_size, sampler=ShardSampler(part))` and save it with `laconic.checkpoint(...,
    sampler=sampler)`. Each epoch has its own order, drawn from the seed. The position counts items handed out, which
    equals the items trained on when the loader runs in-process (`num_workers=0`).

    - `part`: what `laconic.shard` returned.
    - `shuffle`: draw a new order for each epoch; otherwise the items come as they are.
    - `seed`: of these draws.
    """

    def __init__(self, part: Dataset[Any], shuffle: bool = True, seed: int = 0) -> None:
        self._length = len(part)  # type: ignore[arg-type]
        self._shuffle, self._seed = shuffle, seed
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order: Sequence[int] = range(self._length)
        if self._shuffle:
            draw = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
            order = torch.randperm(self._length, generator=draw).tolist()
        while self.position < self._length:
            self.position += 1
            yield order[self.position - 1]
        self.epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "workers": size()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore epoch and position; with another number of workers, about as much of the epoch is left as before,
        though not the same items."""
        self.epoch, self.position = state["epoch"], state["position"] * state["workers"] // size()
