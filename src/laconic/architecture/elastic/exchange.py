"""All-reduces inside a group as state machines: they take in a chunk and say which chunks to send; nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from laconic.collective.chunk_memory import coded_places
from laconic.compression.codec import Codec
from laconic.compression.per_hop import CodeOfHops
from laconic.worker import Coding


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

    Chunk c begins at the member behind c and is complete at member c, who encodes the sum once; those codes go round
    unchanged, and all decode the same bytes. A member sends 2(P - 1) encoded chunks among P members. The numbers are
    those of `per_hop` around the same codec.
    """

    def __init__(self, codec: Codec, flat: Tensor, position: int, size: int) -> None:
        self._code, self._position, self._size = CodeOfHops(codec), position, size
        self._dtype, self._own = flat.dtype, flat.float()
        self._places = [place for (place,) in coded_places(Coding((self._code,), (flat.numel(),)), [1.0] * size)]
        self._sums: dict[int, Tensor] = {}
        self.result: Tensor | None = None

    @classmethod
    def around(cls, codec: Codec) -> MakeExchange:
        """Return what makes rings whose chunks this codec encodes. It may not draw random numbers, for which it would
        need a meeting."""
        return lambda flat, position, size: cls(codec, flat, position, size)

    def begin(self) -> list[Chunk]:
        first = (self._position - 1) % self._size
        return self._pass_on(first, self._own[self._places[first]])

    def receive(self, source: int, phase: str, number: int, tensor: Tensor) -> list[Chunk]:
        own = self._own[self._places[number]]
        if phase == "sum":
            return self._pass_on(number, own + self._decoded(tensor, own.numel()))
        return self._take(number, self._decoded(tensor, own.numel()), tensor)

    def _pass_on(self, number: int, total: Tensor) -> list[Chunk]:
        """Send a sum on to the next member, or to all where this is the last that it needed."""
        encoded = self._code.encode(total, None) if total.numel() else total.to(torch.uint8)
        if number != self._position:
            return [Chunk(self._next, "sum", number, encoded)]
        return self._take(number, self._decoded(encoded, total.numel()), encoded)

    def _take(self, number: int, decoded: Tensor, encoded: Tensor) -> list[Chunk]:
        """Keep a complete sum, and forward its codes unless the next member has made them."""
        self._sums[number] = decoded
        if len(self._sums) == self._size:
            sums = torch.cat([self._sums[c] for c in range(self._size)])
            self.result = (sums / self._size).to(self._dtype)
        return [] if number == self._next else [Chunk(self._next, "total", number, encoded)]

    def _decoded(self, message: Tensor, numel: int) -> Tensor:
        return self._code.decode(message, numel) if numel else self._own[:0]

    @property
    def _next(self) -> int:
        return (self._position + 1) % self._size
