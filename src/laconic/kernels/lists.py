"""Lists of tensors that go through a hot loop together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor


class TensorList(tuple[Tensor, ...]):
    """Flat tensors that stay where they are, with the cached facts that a launch over all of them needs.

    Whoever has the same tensors in every step (a bucket of gradients, their memories) keeps such a list: querying the
    addresses of hundreds of tensors takes longer than compressing them.
    """

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(x.numel() for x in self)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where each tensor begins, in the device's memory."""
        return tuple(x.data_ptr() for x in self)

    @cached_property
    def table(self) -> Tensor:
        """`places` and `lengths` as two rows of int64 in the host's memory."""
        return torch.tensor([self.places, self.lengths], dtype=torch.int64)

    @cached_property
    def plain(self) -> bool:
        """Whether all are contiguous float32 tensors."""
        return all(x.dtype == torch.float32 and x.is_contiguous() for x in self)

    @cached_property
    def aligned(self) -> bool:
        """Whether all begin at a multiple of 16 bytes."""
        return not any(place % 16 for place in self.places)


def listed(tensors: Sequence[Tensor]) -> TensorList:
    """Return these tensors as a `TensorList`."""
    return tensors if isinstance(tensors, TensorList) else TensorList(tensors)
