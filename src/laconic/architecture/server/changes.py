"""Reads that say how values have changed: the server's own error memory, one for each reader.

Casts say the values themselves. Anything coarser says the difference between what the server has and what the reader
holds; what it did not say stays in that difference and is said later. Both sides add up what was said, so that the
server knows to the bit what each reader holds, without a memory of its own that could drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from laconic.architecture.server.point_to_point import decode_all, encode_all
from laconic.compression.base import Compressor
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Field, Meet

Words = tuple[Mapping[str, Field], tuple[Tensor, ...]]
Meetings = Callable[[int, int, str], Meet]
"""The meeting of a worker, in a step, for a tensor's name: what a compressor's draws depend on."""


@dataclass(eq=False)
class _Reader:
    """What one reader holds, after so many reads, and the last answer in case it was lost on its way."""

    reads: int
    values: list[Tensor]
    last: Words


class DeltaEncoder:
    """The server's side. A reader says how many reads it has heard; one that nobody knows, because it is new or this
    server has come back from a snapshot, is told the values as they are."""

    def __init__(self, compressor: Compressor, specs: Sequence[TensorSpec], meetings: Meetings) -> None:
        self._compressor, self._specs, self._meetings = compressor, specs, meetings
        self._known: dict[int, _Reader] = {}

    def answer(self, reader: int, heard: int, values: Sequence[Tensor]) -> Words:
        known = self._known.get(reader)
        if known is not None and heard == known.reads - 1:
            return known.last
        if known is None or heard != known.reads:
            return self._plainly(reader, heard, values)
        known.reads += 1
        meeting = partial(self._meetings, reader, known.reads)
        apart = [value.detach() - held for value, held in zip(values, known.values, strict=True)]
        fields, words = encode_all(self._compressor, self._specs, apart, {}, meeting)
        known.last = {**fields, "reads": known.reads}, words
        changes = decode_all(self._compressor, self._specs, ActorMessage("values", *known.last), meeting)
        for held, change in zip(known.values, changes, strict=True):
            held += change
        return known.last

    def _plainly(self, reader: int, heard: int, values: Sequence[Tensor]) -> Words:
        """No number is used twice, so that an older answer on its way cannot be taken for this one."""
        known = self._known.get(reader)
        reads = 1 + max(heard, known.reads if known else 0)
        held = [value.detach().clone() for value in values]
        words: Words = {"plain": True, "reads": reads}, tuple(value.clone() for value in held)
        self._known[reader] = _Reader(reads, held, words)
        return words

    def forget(self, reader: int) -> None:
        self._known.pop(reader, None)


class DeltaDecoder:
    """The reader's side, for one shard. An answer that it has heard already changes nothing."""

    def __init__(self, compressor: Compressor, specs: Sequence[TensorSpec], meetings: Meetings, reader: int) -> None:
        self._compressor, self._specs, self._meetings, self._reader = compressor, specs, meetings, reader
        self.reads = 0
        self._values: list[Tensor] = []

    def hear(self, message: ActorMessage) -> list[Tensor]:
        """The values, as far as this reader knows them."""
        reads = message.number("reads")
        if reads > self.reads:
            if message.fields.get("plain"):
                self._values = [value.clone() for value in message.tensors]
            else:
                meeting = partial(self._meetings, self._reader, reads)
                for held, change in zip(
                    self._values, decode_all(self._compressor, self._specs, message, meeting), strict=True
                ):
                    held += change
            self.reads = reads
        return [value.clone() for value in self._values]
