"""Values in float32: the codec of a selector's values unless the chain names another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@dataclass(frozen=True)
class Raw(Codec):
    """A codec that sends values as they are, four bytes each."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return x.contiguous().reshape(-1).view(torch.uint8)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return (payload if payload.storage_offset() % 4 == 0 else payload.clone()).view(torch.float32).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * spec.numel
