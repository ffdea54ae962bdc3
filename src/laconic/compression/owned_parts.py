"""The parts of a bucket's tensors that each of several owners has, where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from laconic.compression.bucket import TensorBucket
from laconic.kernels.lists import TensorList


class OwnedParts:
    """The parts of all tensors, by owner and then by tensor, each as long as `Codec.split` makes it.

    Most parts are views of the bucket. A part that reaches beyond its tensor has a copy, padded with zeros.
    """

    def __init__(self, bucket: TensorBucket, unit: int, size: int) -> None:
        self._flat = bucket.flat
        self.lengths = tuple(-(-n // (size * unit)) * unit for n in bucket.lengths)
        self.all_lengths = self.lengths * size
        ends = torch.tensor((0, *bucket.lengths)).cumsum(0).tolist()
        self._spans = [
            (first + min(owner * part, n), first + min((owner + 1) * part, n))
            for owner in range(size)
            for first, n, part in zip(ends, bucket.lengths, self.lengths, strict=False)
        ]
        self._count = len(bucket.lengths)
        self.mean = self._flat.new_empty(sum(self.lengths))
        self.means = TensorList(self.mean.split(self.lengths))
        self._inputs, self._filled = self._with_copies()
        self.results, self._decoded = self._with_copies()

    def _with_copies(self) -> tuple[TensorList, list[tuple[Tensor, Tensor]]]:
        """Return each part, and the pairs of a short one in the bucket and in its padded copy."""
        parts, pairs = [], []
        short = [p for p, (a, b) in zip(self.all_lengths, self._spans, strict=True) if b - a < p]
        room = iter(self._flat.new_zeros(sum(-(-p // 4) * 4 for p in short)).split([-(-p // 4) * 4 for p in short]))
        for part, (first, last) in zip(self.all_lengths, self._spans, strict=True):
            inside = self._flat[first:last]
            if last - first < part:
                copy = next(room)[:part]
                if last > first:
                    pairs.append((inside, copy[: last - first]))
                inside = copy
            parts.append(inside)
        return TensorList(parts), pairs

    def inputs(self) -> TensorList:
        """Return each part with the values that the bucket has now."""
        _copy([(copy, inside) for inside, copy in self._filled])
        return self._inputs

    def store(self) -> None:
        """Bring what was written to copies among `results` into the bucket."""
        _copy(self._decoded)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return parts of such lengths as a flat vector of all tensors."""
        flat = torch.empty_like(self._flat)
        _copy([(flat[a:b], part[: b - a]) for (a, b), part in zip(self._spans, parts, strict=True) if b > a])
        return flat

    def taken(self, owner: Tensor, rank: int) -> tuple[list[Tensor], Tensor]:
        """Take the memory of this worker's own parts out of the owners' memory; return it, and what the rest of the
        memory adds to this worker's message: an owner's memory is of the mean, not of one worker's share."""
        kept = torch.zeros_like(self.mean).split(self.lengths)
        _copy([(part[: mine.numel()], mine) for part, mine in zip(kept, self._owned(owner, rank), strict=True)])
        torch._foreach_zero_(self._owned(owner, rank))
        return list(kept), self._size * owner

    def keep(self, owner: Tensor, rank: int, parts: Sequence[Tensor]) -> None:
        """Make these the memory of this worker's own parts, and nothing that of all others."""
        owner.zero_()
        _copy([(mine, part[: mine.numel()]) for part, mine in zip(parts, self._owned(owner, rank), strict=True)])

    @cached_property
    def _size(self) -> int:
        return len(self._spans) // self._count

    def _owned(self, owner: Tensor, rank: int) -> list[Tensor]:
        return [owner[a:b] for a, b in self._spans[rank * self._count : (rank + 1) * self._count]]


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair to the first."""
    if pairs:
        torch._foreach_copy_([to for to, _ in pairs], [source for _, source in pairs])
