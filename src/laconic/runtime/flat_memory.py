"""The compressor's memory of several tensors as flat vectors, for exchanges of whole buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laconic.compression.base import State
from laconic.compression.bucket import TensorBucket
from laconic.kernels.lists import packed
from laconic.kernels.offload import room
from laconic.values.tensor_spec import TensorSpec


class FlatMemories:
    """The flat memories of one tier, by the names of the tensors that share one.

    Each tensor's memory, as it is saved, is a view of its bucket's flat memory, so that both see every change. When
    buckets are formed anew, vectors are made of the memories the tensors had.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, ...], TensorBucket] = {}
        self.changed = False  # whether the bucket returned last lies elsewhere than before

    def forget(self) -> None:
        """Note that memories were replaced: vectors are made of the new ones when they are next asked for."""
        self._buckets.clear()

    def of(
        self,
        specs: tuple[TensorSpec, ...],
        flat: Tensor,
        state_of: Callable[[TensorSpec], State],
        offload: bool = False,
    ) -> TensorBucket:
        """Return the bucket of these tensors, which lie in `flat`, with their memory; its vectors are in the host's
        memory where a GPU's are to be offloaded."""
        names = tuple(spec.name for spec in specs)
        found = self._buckets.get(names)
        self.changed = found is None or found.specs != specs or found.flat is not flat
        if found is None or found.specs != specs:
            self._forget_all_with(names)
            found = self._buckets[names] = _gathered(specs, flat, state_of, offload)
        if found.flat is not flat:
            found = self._buckets[names] = found.at(flat)
        return found

    def leave(self, specs: tuple[TensorSpec, ...]) -> None:
        """Keep only the memory of these tensors until they are next exchanged, neither the tensors nor buffers."""
        names = tuple(spec.name for spec in specs)
        found = self._buckets[names].at(self._buckets[names].flat.new_empty(0))
        found.buffers = {}
        self._buckets[names] = found

    def _forget_all_with(self, names: Sequence[str]) -> None:
        taken = set(names)
        self._buckets = {others: bucket for others, bucket in self._buckets.items() if not taken.intersection(others)}


def _gathered(
    specs: tuple[TensorSpec, ...], flat: Tensor, state_of: Callable[[TensorSpec], State], offload: bool
) -> TensorBucket:
    bucket = TensorBucket(specs, flat)
    states = [state_of(spec) for spec in specs]
    vectors: dict[str, Tensor] = {}
    lists: dict[str, Sequence[Tensor]] = {}
    for key in states[0]:
        entries = [state[key] for state in states]
        alike = len({entry.dtype for entry in entries}) == 1
        if alike and all(e.numel() == spec.numel for e, spec in zip(entries, specs, strict=True)):
            vectors[key] = room(sum(bucket.lengths), entries[0].dtype, flat.device, offload)
            torch.cat([entry.reshape(-1).to(vectors[key].device) for entry in entries], out=vectors[key])
            for state, entry, part in zip(states, entries, bucket.parts(vectors[key]), strict=True):
                state[key] = part.view(entry.shape)
        elif alike:
            lists[key] = together = packed(entries)
            for state, part in zip(states, together, strict=True):
                state[key] = part
        else:
            lists[key] = entries
    bucket.vectors, bucket.lists = vectors, lists
    return bucket
