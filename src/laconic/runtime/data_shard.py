"""Each worker's part of the data: parts have equal lengths, so that every worker makes the same number of steps."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import Dataset, Sampler, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from laconic.errors import ContractError
from laconic.runtime.current_worker import rank, size

T = TypeVar("T")


def shard(dataset: Dataset[T] | Sequence[T], remainder: Literal["drop", "pad"] = "drop") -> Subset[T]:
    """Return this worker's items: every size-th one, beginning at its rank.

    - `dataset`: all items, with a length.
    - `remainder`: items that do not divide evenly are dropped (`"drop"`), or the first items are repeated (`"pad"`):
      the mean over workers is plain, as DDP's, and unequal lengths would leave some workers waiting in the last step.
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
    sampler=sampler)`. Each epoch has its own order, drawn from the seed. The position counts the items of batches that
    the training loop has received: what a loader's workers (`num_workers=4`) have fetched in advance is not lost.

    - `part`: what `laconic.shard` returned.
    - `shuffle`: draw a new order for each epoch; otherwise the items come as they are.
    - `seed`: of these draws.
    """

    def __init__(self, part: Dataset[Any], shuffle: bool = True, seed: int = 0) -> None:
        """Sample from `part`, which has a length; in the order of `part` unless `shuffle`, else in one drawn from
        `seed` and the number of the epoch."""
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
        prefetching = _prefetching_loader()
        if prefetching is not None:
            self._count_batches_of(prefetching)
            yield from order[self.position :]
            return
        while self.position < self._length:
            self.position += 1
            yield order[self.position - 1]
        self._end_epoch()

    def _count_batches_of(self, loader: _MultiProcessingDataLoaderIter) -> None:
        """Move the position when this iterator hands out a batch, rather than when its workers are given the items."""
        drawing = loader._index_sampler
        each = 1 if drawing is self else getattr(drawing, "batch_size", None)
        if not isinstance(each, int):
            raise ContractError(
                f"{type(drawing).__name__} has no batch_size, by which a ShardSampler counts what a loader's workers "
                "have not only fetched but handed out: give one to it, or load with num_workers=0"
            )
        weak = weakref.ref(loader)  # its workers end with it
        hand_out = type(loader)._next_data

        def counted() -> Any:
            try:
                batch = hand_out(weak())  # type: ignore[arg-type]  # it is the one that calls this
            except StopIteration:
                self._end_epoch()
                raise
            self.position = min(self.position + each, self._length)
            return batch

        loader._next_data = counted  # type: ignore[method-assign]

    def _end_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "workers": size()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore epoch and position; with another number of workers, about as much of the epoch is left as before,
        though not the same items."""
        self.epoch, self.position = state["epoch"], state["position"] * state["workers"] // size()


def _prefetching_loader() -> _MultiProcessingDataLoaderIter | None:
    """Return the iterator of a `DataLoader` with worker processes that is drawing from the calling sampler, if one is.

    A loader does not tell its sampler who it is, so this looks at who is asking, through any batch sampler in between.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BaseDataLoaderIter._next_index.__code__:
        frame = frame.f_back
    asking = None if frame is None else frame.f_locals["self"]
    return asking if isinstance(asking, _MultiProcessingDataLoaderIter) else None
