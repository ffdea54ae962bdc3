"""How what travels between two stages is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from laconic.worker import HopCode


class BoundaryCode(Protocol):
    """How one direction of a border between stages is encoded. Sender and receiver have one each; what they remember
    must follow from the messages and the samples alone, so that it stays equal."""

    def nbytes(self, shape: torch.Size, samples: Sequence[int] | None) -> int:
        """Return the bytes of the next message, of a tensor of this shape for these samples."""
        ...

    def encode(self, tensor: Tensor, samples: Sequence[int] | None) -> Tensor:
        """Return the message (uint8) of a tensor."""
        ...

    def decode(self, message: Tensor, shape: torch.Size, samples: Sequence[int] | None) -> Tensor:
        """Return the tensor (float32) that a message encodes."""
        ...


@dataclass(frozen=True)
class Coded:
    """A code without memory: that of any compressor whose messages have a known length, by `CodeOfHops`."""

    code: HopCode

    def nbytes(self, shape: torch.Size, samples: Sequence[int] | None) -> int:
        del samples
        return self.code.nbytes(shape.numel())

    def encode(self, tensor: Tensor, samples: Sequence[int] | None) -> Tensor:
        del samples
        return self.code.encode(tensor.reshape(-1).float(), None)

    def decode(self, message: Tensor, shape: torch.Size, samples: Sequence[int] | None) -> Tensor:
        del samples
        return self.code.decode(message, shape.numel()).view(shape)
