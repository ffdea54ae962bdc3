"""Where a member keeps its chunks, and how they are written in messages: as they are, or encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.worker import Coding


@dataclass(frozen=True)
class Message:
    """Chunks that one rank sends to another in one step, to be copied or to be added."""

    peer: int
    chunks: tuple[int, ...]
    adds: bool


class ChunkMemory(Protocol):
    """What one member holds of every chunk while a program is carried out."""

    def read(self, message: Message, step: int) -> Tensor:
        """Return what is sent in a message of this step."""
        ...

    def room(self, message: Message, sent: set[int]) -> Tensor:
        """Return where to receive a message, while these chunks are being sent."""
        ...

    def take(self, message: Message, part: Tensor) -> None:
        """Copy or add what was received."""
        ...

    def finish(self) -> None:
        """Write all chunks to the member's vector, when the program has ended."""
        ...


def cuts(shares: Sequence[float] | np.ndarray, numel: int) -> list[int]:
    """Return where each chunk of a vector of so many elements begins, and where the last ends. Equal chunks differ by
    at most one element."""
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * numel).astype(int)
    return [0, *ends.tolist()]


Places = Sequence[slice] | Mapping[int, slice]
"""Where each chunk lies in a member's vector."""


@dataclass(frozen=True, eq=False)
class PlainChunks:
    """Chunks that are sent as they are: neighbours are views of the vector."""

    vector: Tensor
    places: Places

    def read(self, message: Message, step: int) -> Tensor:
        return self.joined(message.chunks)

    def joined(self, chunks: Sequence[int]) -> Tensor:
        """Return chunks as one tensor: a view where they are neighbours."""
        span = self._span(chunks)
        return self.vector[span] if span else torch.cat([self.vector[self.places[c]] for c in chunks])

    def room(self, message: Message, sent: set[int]) -> Tensor:
        """Return the chunks' own place, where they are copied there and nothing else is sent from it."""
        span = self._span(message.chunks)
        if span and not message.adds and sent.isdisjoint(message.chunks):
            return self.vector[span]
        return self.vector.new_empty(sum(_length(self.places[c]) for c in message.chunks))

    def take(self, message: Message, part: Tensor) -> None:
        if part.untyped_storage().data_ptr() == self.vector.untyped_storage().data_ptr():
            return  # it was received in its place
        span, start = self._span(message.chunks), 0
        for place in [span] if span else [self.places[c] for c in message.chunks]:
            piece = part[start : start + _length(place)]
            self.vector[place].add_(piece) if message.adds else self.vector[place].copy_(piece)
            start += _length(place)

    def finish(self) -> None:
        """Do nothing: chunks are written where they arrive."""

    def _span(self, chunks: Sequence[int]) -> slice | None:
        """Return where chunks lie that are neighbours in this order, or none."""
        places = self.places
        if all(places[a].stop == places[b].start for a, b in pairwise(chunks)):
            return slice(places[chunks[0]].start, places[chunks[-1]].stop)
        return None


class CodedChunks:
    """Chunks that are encoded in messages, and float32 in memory.

    A chunk that is received to be added is decoded and added. Whoever sends a chunk encodes it and goes on with what
    the others decode; as long as the chunk stays as it is, it is sent in the same message, and a copy is passed on as
    it came. Whoever has a chunk's last sum encodes it in one and the same way, also if nobody needs it any more. So
    all members end with the same bits, in whichever way a sum reached them.
    """

    def __init__(self, vector: Tensor, coding: Coding, shares: Sequence[float] | np.ndarray) -> None:
        self._vector, self._coding = vector, coding
        self._places = coded_places(coding, shares)
        self._nbytes = [_message_bytes(coding, places) for places in self._places]
        self._messages: dict[int, Tensor] = {}  # of chunks that are what this decodes to, whatever the vector holds

    def read(self, message: Message, step: int) -> Tensor:
        return torch.cat([self._encoded(chunk, step if message.adds else None) for chunk in message.chunks])

    def room(self, message: Message, sent: set[int]) -> Tensor:
        return self._vector.new_empty(sum(self._nbytes[c] for c in message.chunks), dtype=torch.uint8)

    def take(self, message: Message, part: Tensor) -> None:
        for chunk, written in zip(message.chunks, part.split([self._nbytes[c] for c in message.chunks]), strict=True):
            if message.adds:
                self._decode(chunk)
                for place, decoded in self._decoded(chunk, written):
                    self._vector[place].add_(decoded)
            else:
                self._messages[chunk] = written

    def finish(self) -> None:
        for chunk in range(len(self._places)):
            self._encoded(chunk, None)
            self._decode(chunk)

    def _encoded(self, chunk: int, step: int | None) -> Tensor:
        if chunk not in self._messages:
            parts = zip(self._coding.codes, self._places[chunk], strict=True)
            written = [code.encode(self._vector[place], step) for code, place in parts if _length(place)]
            self._messages[chunk] = torch.cat([self._vector.new_empty(0, dtype=torch.uint8), *written])
        return self._messages[chunk]

    def _decode(self, chunk: int) -> None:
        """Write to the vector what a chunk's message says, where it has one."""
        if chunk in self._messages:
            for place, decoded in self._decoded(chunk, self._messages.pop(chunk)):
                self._vector[place].copy_(decoded)

    def _decoded(self, chunk: int, message: Tensor) -> Iterator[tuple[slice, Tensor]]:
        start = 0
        for code, place in zip(self._coding.codes, self._places[chunk], strict=True):
            if length := _length(place):
                end = start + code.nbytes(length)
                yield place, code.decode(message[start:end], length)
                start = end


def coded_places(coding: Coding, shares: Sequence[float] | np.ndarray) -> list[tuple[slice, ...]]:
    """Return where each chunk lies: a part of every vector of the coding, cut where its code can be cut."""
    by_vector, start = [], 0
    for code, length in zip(coding.codes, coding.lengths, strict=True):
        ends = [min(code.unit * cut, length) for cut in cuts(shares, -(-length // code.unit))]
        by_vector.append([slice(start + a, start + b) for a, b in pairwise(ends)])
        start += length
    return list(zip(*by_vector, strict=True))


def coded_bytes(coding: Coding, shares: Sequence[float] | np.ndarray) -> list[int]:
    """Return the bytes of each chunk's message."""
    return [_message_bytes(coding, places) for places in coded_places(coding, shares)]


def _message_bytes(coding: Coding, places: Sequence[slice]) -> int:
    parts = zip(coding.codes, map(_length, places), strict=True)
    return sum(code.nbytes(length) for code, length in parts if length)


def _length(place: slice) -> int:
    return int(place.stop - place.start)
