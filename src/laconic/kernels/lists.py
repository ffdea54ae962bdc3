"""Lists of tensors that go through a hot loop together, wherever each lies (`TensorList`) or one behind another
(`Packed`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

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


class Packed(Sequence[Tensor]):
    """Tensors of these shapes that lie one behind another in `flat`, as a message has them.

    Loops over all of them take `flat` and the shapes alone; the tensors themselves are made when they are asked for.
    """

    def __init__(self, flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self.flat, self.shapes = flat, tuple(shapes)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where in `flat` each tensor begins."""
        return (0, *accumulate(self.lengths[:-1]))

    @property
    def device(self) -> torch.device:
        return self.flat.device

    @cached_property
    def _tensors(self) -> tuple[Tensor, ...]:
        parts = self.flat.split(self.lengths)
        return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def like(self, flat: Tensor) -> Packed:
        """Return tensors of the same shapes in another vector."""
        return self if flat is self.flat else Packed(flat, self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        return self._tensors[index]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors)


def packed(tensors: Sequence[Tensor]) -> Packed:
    """Return these tensors one behind another: copies, unless they lie so already."""
    if isinstance(tensors, Packed):
        return tensors
    flats = [tensor.reshape(-1) for tensor in tensors]
    return Packed(flats[0] if len(flats) == 1 else torch.cat(flats), [tuple(tensor.shape) for tensor in tensors])


def room_for(shapes: Sequence[tuple[int, ...]], like: Tensor) -> Packed:
    """Return uninitialised tensors of these shapes."""
    return Packed(like.new_empty(sum(torch.Size(shape).numel() for shape in shapes)), shapes)
