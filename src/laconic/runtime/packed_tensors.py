"""Tensors for one other worker, as few messages: those of one format travel as one."""

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
        """A copy, so that the tensors may change while it is under way."""
        formats = tuple(map(wire, tensors))
        messages = tuple(
            torch.cat([x.detach().reshape(-1).to(kind) for x, f in zip(tensors, formats, strict=True) if f == kind])
            for kind in dict.fromkeys(formats)
        )
        return cls(tuple(tensors), formats, messages)

    @classmethod
    def like(cls, tensors: Sequence[Tensor], wire: Callable[[Tensor], torch.dtype]) -> PackedTensors:
        """Room for such tensors, to be filled."""
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
        return [x.numel() for x, f in zip(self.contents, self.formats, strict=True) if f != x.dtype]

    def unpack(self) -> list[Tensor]:
        """The tensors in their own shapes and types."""
        kinds = list(dict.fromkeys(self.formats))
        ends = dict.fromkeys(kinds, 0)
        found = []
        for x, kind in zip(self.contents, self.formats, strict=True):
            start, ends[kind] = ends[kind], ends[kind] + x.numel()
            found.append(self.messages[kinds.index(kind)][start : ends[kind]].view(x.shape).to(x.dtype))
        return found
