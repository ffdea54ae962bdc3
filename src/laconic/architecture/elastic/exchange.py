"""All-reduces inside a group as state machines: they take in a chunk and say which chunks to send; nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from laconic.compression.codec import Codec


@dataclass(frozen=True, eq=False)
class Chunk:
    """A part of a vector on its way to the member at position `to`, in a phase of the exchange."""

    to: int
    phase: str
    number: int
    tensor: Tensor


class Exchange(Protocol):
    """One member's side of an all-reduce among `size` members that send each other chunks.

    `result` is the mean once it is complete, with the same bits at all members.
    """

    result: Tensor | None

    def begin(self) -> list[Chunk]:
        """Return the first chunks to send."""
        ...

    def receive(self, source: int, phase: str, number: int, tensor: Tensor) -> list[Chunk]:
        """Take in a chunk from the member at this position, and return those to send now."""
        ...


MakeExchange = Callable[[Tensor, int, int], Exchange]
"""Makes a member's side of an exchange from its flat vector, its position and the number of members."""


class ByParts:
    """All-reduce by parts: member i receives part i of every vector, averages these in the order of positions, and
    sends the mean of the part to all.

    A member sends 2(P - 1)/P of its vector among P members. Sums are in float32 at least.
    """

    def __init__(self, flat: Tensor, position: int, size: int) -> None:
        self._position, self._size, self._dtype = position, size, flat.dtype
        self._own = flat.tensor_split(size)
        self._parts: dict[int, Tensor] = {position: self._own[position]}
        self._means: dict[int, Tensor] = {}
        self.result: Tensor | None = None

    def begin(self) -> list[Chunk]:
        sends = [Chunk(to, "part", to, self._own[to]) for to in range(self._size) if to != self._position]
        return [*sends, *self._average()]

    def receive(self, source: int, phase: str, number: int, tensor: Tensor) -> list[Chunk]:
        if phase == "part":
            self._parts[source] = tensor
            return self._average()
        self._means[number] = tensor
        self._finish()
        return []

    def _average(self) -> list[Chunk]:
        """Average this member's part when every member's has arrived."""
        if len(self._parts) < self._size:
            return []
        total = self._parts[0].to(torch.promote_types(self._dtype, torch.float32), copy=True)
        for source in range(1, self._size):
            total += self._parts[source]
        mean = self._means[self._position] = total.div_(self._size).to(self._dtype)
        self._finish()
        return [Chunk(to, "mean", self._position, mean) for to in range(self._size) if to != self._position]

    def _finish(self) -> None:
        if len(self._means) == self._size:
            self.result = torch.cat([self._means[i] for i in range(self._size)])


class CodedRing:
    """INTELLECT-1's ring: a chunk is decoded, added to and encoded again on every hop; sums stay float32 in memory.

    Chunk c begins at member c and is complete at the member before it, who encodes the sum once; those codes go round
    unchanged, and all decode the same bytes. A member sends 2(P - 1) encoded chunks among P members. The numbers are
    those of `ring_hop` around the same codec.
    """

    def __init__(self, codec: Codec, flat: Tensor, position: int, size: int) -> None:
        self._codec, self._position, self._size = codec, position, size
        self._shape, self._dtype = flat.shape, flat.dtype
        self._own = codec.split(flat.float(), size)
        self._sums: dict[int, Tensor] = {}
        self.result: Tensor | None = None

    @classmethod
    def around(cls, codec: Codec) -> MakeExchange:
        """Return what makes rings whose chunks this codec encodes. It may not draw random numbers, for which it would
        need a meeting."""
        return lambda flat, position, size: cls(codec, flat, position, size)

    def begin(self) -> list[Chunk]:
        return self._pass_on(self._position, self._own[self._position])

    def receive(self, source: int, phase: str, number: int, tensor: Tensor) -> list[Chunk]:
        decoded = self._codec.decode(tensor, self._own[number].shape, _NOBODY)
        if phase == "sum":
            return self._pass_on(number, self._own[number] + decoded)
        return self._take(number, decoded, tensor)

    def _pass_on(self, number: int, total: Tensor) -> list[Chunk]:
        """Send a sum on to the next member, or to all where this is the last that it needed."""
        encoded = self._codec.encode(total, _NOBODY)
        if (number - 1) % self._size != self._position:
            return [Chunk(self._next, "sum", number, encoded)]
        return self._take(number, self._codec.decode(encoded, total.shape, _NOBODY), encoded)

    def _take(self, number: int, decoded: Tensor, encoded: Tensor) -> list[Chunk]:
        """Keep a complete sum, and forward its codes unless the next member has made them."""
        self._sums[number] = decoded
        if len(self._sums) == self._size:
            sums = torch.stack([self._sums[c] for c in range(self._size)])
            self.result = (self._codec.join(sums, self._shape) / self._size).to(self._dtype)
        made_by_next = (number - 1) % self._size == self._next
        return [] if made_by_next else [Chunk(self._next, "total", number, encoded)]

    @property
    def _next(self) -> int:
        return (self._position + 1) % self._size


_NOBODY: Any = None  # codecs of a ring draw nothing, so that they need no meeting
