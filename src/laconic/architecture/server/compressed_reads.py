"""Reads compressed as changes of the values, with error feedback on the server for each reader.

Casts send the values themselves. Any coarser compressor sends the difference between what the server has and what the
reader holds; what it did not send stays in that difference and is sent later. Both sides add up what was sent, so that
the server knows to the bit what each reader holds, without a separate error memory that could drift.
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

Encoded = tuple[Mapping[str, Field], tuple[Tensor, ...]]
Meetings = Callable[[int, int, str], Meet]
"""Makes the `Meet` of a worker, in a step, for a tensor's name: a compressor's random draws depend on it."""


@dataclass(eq=False)
class _Reader:
    """What one reader holds after so many reads, and the last answer in case it was lost in transit."""

    reads: int
    values: list[Tensor]
    last: Encoded


class DeltaEncoder:
    """The server's side of compressed reads, for all readers.

    A reader sends how many answers it has received. One that is unknown, because it is new or this server was restored
    from a snapshot, gets the values uncompressed.
    """

    def __init__(self, compressor: Compressor, specs: Sequence[TensorSpec], meetings: Meetings) -> None:
        self._compressor, self._specs, self._meetings = compressor, specs, meetings
        self._known: dict[int, _Reader] = {}

    def encode(self, reader: int, received: int, values: Sequence[Tensor]) -> Encoded:
        """Encode an answer for a reader that has received so many: the change since, or the last answer once more."""
        known = self._known.get(reader)
        if known is not None and received == known.reads - 1:
            return known.last
        if known is None or received != known.reads:
            return self._encode_in_full(reader, received, values)
        known.reads += 1
        meeting = partial(self._meetings, reader, known.reads)
        differences = [value.detach() - held for value, held in zip(values, known.values, strict=True)]
        fields, payload = encode_all(self._compressor, self._specs, differences, {}, meeting)
        known.last = {**fields, "reads": known.reads}, payload
        changes = decode_all(self._compressor, self._specs, ActorMessage("values", *known.last), meeting)
        for held, change in zip(known.values, changes, strict=True):
            held += change
        return known.last

    def _encode_in_full(self, reader: int, received: int, values: Sequence[Tensor]) -> Encoded:
        """Send the values uncompressed. No number is used twice, so that an older answer in flight cannot be mistaken
        for this one."""
        known = self._known.get(reader)
        reads = 1 + max(received, known.reads if known else 0)
        held = [value.detach().clone() for value in values]
        encoded: Encoded = {"plain": True, "reads": reads}, tuple(value.clone() for value in held)
        self._known[reader] = _Reader(reads, held, encoded)
        return encoded

    def forget(self, reader: int) -> None:
        """Drop what is known of a reader, so that its next answer is uncompressed."""
        self._known.pop(reader, None)


class DeltaDecoder:
    """The reader's side of compressed reads, for one shard. An answer that it has received already changes nothing."""

    def __init__(self, compressor: Compressor, specs: Sequence[TensorSpec], meetings: Meetings, reader: int) -> None:
        self._compressor, self._specs, self._meetings, self._reader = compressor, specs, meetings, reader
        self.reads = 0
        self._values: list[Tensor] = []

    def decode(self, message: ActorMessage) -> list[Tensor]:
        """Add the change in an answer, and return the values as far as this reader knows them."""
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
