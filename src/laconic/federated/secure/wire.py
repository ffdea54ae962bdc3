"""Clients' vectors as whole numbers of a ring: what is masked, and what their sum means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from laconic.compression.optional import ring_bits_of
from laconic.errors import StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.messages import SERVER, Message, Wire
from laconic.federated.partition import Integers
from laconic.federated.secure.masks import Ring, packed, reduced, signed, unpacked
from laconic.runtime.meeting import Meeting

_NUMBERS = "ring"


@dataclass(frozen=True)
class RingWire(Wire):
    """How each of several clients encodes its vectors so that the sum of all messages is the message of the sum.

    A client's vectors are multiplied by its samples, of which at most `cap` count, over `cap`, and made whole numbers
    by a compressor whose messages are added. The last number is how many samples count, so that the server learns
    their sum and no single one.

    - `samples`: how many each client holds.
    - `clients`: how many encode in this round.
    """

    samples: Integers | None = None
    cap: int = 1
    clients: int = 2

    def among(self, clients: int) -> RingWire:
        return replace(self, clients=max(2, clients))

    @property
    def bits(self) -> int:
        """The bits of a number, in which the sum of all clients fits."""
        bits = ring_bits_of(self.compressor, self.clients)
        assert bits is not None
        return bits

    def encode(
        self,
        vectors: Vectors,
        numbers: Mapping[str, float],
        sender: int,
        version: int,
        memory: Memory,
        masks: Vectors | None = None,
        raw: Vectors | None = None,
    ) -> tuple[Message, Memory]:
        if numbers or masks or raw:
            raise StrategyError(
                "what stands beside vectors is sent in the clear, and secure aggregation takes vectors alone"
            )
        assert self.samples is not None
        weight = min(int(self.samples[sender]), self.cap)
        scaled = {name: vector * (weight / self.cap) for name, vector in vectors.items()}
        message, kept = super().encode(scaled, {}, sender, version, memory)
        parts = [_whole(x) for _, tensors in message.payloads.values() for x in tensors]
        flat = np.concatenate([*parts, np.array([weight], dtype=np.int64)])
        written = np.frombuffer(packed(reduced(flat.astype(np.uint32), self.bits), self.bits), dtype=np.uint8)
        fields = {name: vector.numel() for name, vector in vectors.items()}
        return Message({_NUMBERS: (fields, (torch.from_numpy(written.copy()),))}, {}), kept

    def numbers(self, message: Message) -> Ring:
        """Return the whole numbers of a message, before they are masked."""
        fields, (written,) = message.payloads[_NUMBERS]
        return unpacked(written.numpy().tobytes(), self.bits, self.numel(fields))

    def numel(self, fields: Mapping[str, object]) -> int:
        """Return how many whole numbers a client sends for vectors of these lengths."""
        return sum(x.numel() for _, tensors in self._empty(fields).payloads.values() for x in tensors) + 1

    def mean(self, total: Ring, like: Message, senders: int, version: int) -> tuple[dict[str, Tensor], int]:
        """Return the mean of so many clients' vectors, weighted by the samples that count, and the sum of these.

        Clients that are missing in the sum are filled up with vectors of zeros, which the compressor may write as other
        numbers.

        - `like`: any client's message.
        """
        numbers, empty = signed(total, self.bits), self._empty(like.payloads[_NUMBERS][0])
        weight = int(total[-1])
        start, payloads = 0, {}
        for name, (fields, tensors) in empty.payloads.items():
            sums = []
            for x in tensors:
                missing = (self.clients - senders) * _whole(x)
                here = numbers[start : start + x.numel()] + missing
                sums.append(torch.from_numpy(here.astype(np.int32)).to(x.dtype).view(x.shape))
                start += x.numel()
            payloads[name] = fields, tuple(sums)
        found = super().decode(Message(payloads, {}), SERVER, version)
        return {name: vector * (self.clients * self.cap / max(1, weight)) for name, vector in found.items()}, weight

    def _empty(self, lengths: Mapping[str, object]) -> Message:
        """Return the message of vectors of zeros."""
        vectors = {name: torch.zeros(int(numel)) for name, numel in lengths.items()}  # type: ignore[call-overload]
        return super().encode(vectors, {}, SERVER, 0, {})[0]

    def _meeting(self, sender: int, version: int, tensor: str) -> Meeting:
        return Meeting(sender, self.clients, version, tensor, self.seed)


def _whole(x: Tensor) -> np.ndarray:
    """Return the whole numbers of a payload, or refuse others."""
    if x.is_floating_point():
        raise StrategyError("secure aggregation adds whole numbers; write fixed_point as the compression")
    return x.reshape(-1).to(torch.int64).numpy()
