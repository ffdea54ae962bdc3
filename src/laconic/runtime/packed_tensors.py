"""Tensors for one other worker, packed into as few messages as possible: those of one format are sent as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedTensors:
    """One flat message per format, and the tensors they hold, in order."""

    contents: tuple[Tensor, ...]
    formats: tuple[torch.dtype, ...]
    messages: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], wire: Callable[[Tensor], torch.dtype]) -> PackedTensors:
        """Pack a copy of these tensors, so that they may change while it is in flight."""
        formats = tuple(map(wire, tensors))
        messages = tuple(
            torch.cat([x.detach().reshape(-1).to(kind) for x, f in zip(tensors, formats, strict=True) if f == kind])
            for kind in dict.fromkeys(formats)
        )
        return cls(tuple(tensors), formats, messages)

    @classmethod
    def like(cls, tensors: Sequence[Tensor], wire: Callable[[Tensor], torch.dtype]) -> PackedTensors:
        """Allocate messages into which such tensors can be received."""
        formats = tuple(map(wire, tensors))
        messages = tuple(
            torch.empty(
                sum(x.numel() for x, f in zip(tensors, formats, strict=True) if f == kind),
                dtype=kind,
                device=tensors[0].device,
            )
            for kind in dict.fromkeys(formats)
        )
        return cls(tuple(tensors), formats, messages)

    @property
    def cast_elements(self) -> list[int]:
        """The sizes of the tensors whose format differs from their own type."""
        return [x.numel() for x, f in zip(self.contents, self.formats, strict=True) if f != x.dtype]

    def unpack(self) -> list[Tensor]:
        """Return the tensors in their own shapes and types."""
        kinds = list(dict.fromkeys(self.formats))
        ends = dict.fromkeys(kinds, 0)
        found = []
        for x, kind in zip(self.contents, self.formats, strict=True):
            start, ends[kind] = ends[kind], ends[kind] + x.numel()
            found.append(self.messages[kinds.index(kind)][start : ends[kind]].view(x.shape).to(x.dtype))
        return found
