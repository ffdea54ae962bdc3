"""How activations and their gradients are encoded on their way from one device to another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.none import Identity
from laconic.errors import LaconicError
from laconic.runtime.meeting import Meeting
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec


@dataclass(frozen=True)
class MessageCode:
    """A codec for messages between two devices: both know how long an encoded message is, and draw the same random
    numbers for it. It has no memory: what is lost of a message is not sent later.

    - `codec`: encodes and decodes.
    - `words`: it as written, for a virtual clock that knows how long encoding takes.
    """

    codec: Codec
    words: str

    @classmethod
    def of(cls, text: str) -> MessageCode | None:
        """Return the code that a chain of compression describes, such as `int8(256)`; None for `none`."""
        sentence = Strategy.parse(text)
        compressor = sentence.compressor if isinstance(sentence, Sentence) else None
        if isinstance(compressor, Identity):
            return None
        if not isinstance(compressor, Codec) or compressor.ragged:
            raise LaconicError(
                f"{text} is no code for messages between two devices, whose length both know without asking and which "
                "one of them decodes alone; write none, cast_bf16 or int8(256)"
            )
        assert isinstance(sentence, Sentence)
        return cls(compressor, sentence.chain)

    def nbytes(self, numel: int) -> int:
        """Return the bytes of the message of so many elements."""
        return self.codec.payload_bytes(TensorSpec("", (numel,), torch.float32), 2) if numel else 0

    def encode(self, x: Tensor, meeting: Meeting) -> Tensor:
        """Return the message (uint8) of a tensor."""
        if not x.numel():
            return torch.empty(0, dtype=torch.uint8, device=x.device)
        return self.codec.encode(x.detach().reshape(-1).float(), meeting)

    def decode(self, message: Tensor, numel: int, meeting: Meeting) -> Tensor:
        """Return the elements (float32, flat) that a message encodes."""
        if not numel:
            return torch.empty(0, device=message.device)
        return self.codec.decode(message, torch.Size([numel]), meeting)
