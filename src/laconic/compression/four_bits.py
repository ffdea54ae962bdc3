"""Four-bit integers in blocks that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.claims import Payload
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_LARGEST = 7


@technique(
    "cast_int4",
    aliases=["int4"],
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    claims=[Payload(lambda spec, c: -(-spec.numel // 2) + 4 * -(-spec.numel // c.block))],
    formula="Q(x)_i = s·round(x_i/s), from -7 to 7, s = max|block|/7 in float32",
    worth_trying=["cast_int4+ef"],
)
@dataclass(frozen=True)
class CastInt4(Codec):
    """Integers of four bits, from -7 to 7, with a float32 scale for each block of values that follow each other.

    The nearest one is taken, so that no value is further off than half a step of its block. The last block may be
    shorter. A block that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    block: int = knob(128, low=2, doc="values that share a scale")

    @property
    def unit(self) -> int:
        return self.block + self.block % 2

    def _rows(self, flat: Tensor) -> Tensor:
        return torch.nn.functional.pad(flat, (0, -flat.numel() % self.block)).view(-1, self.block)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        rows = self._rows(x.reshape(-1))
        scales = rows.abs().amax(dim=1, keepdim=True) / _LARGEST
        steps = (rows / scales.where(scales > 0, 1)).nan_to_num(0.0).round().clamp(-_LARGEST, _LARGEST)
        codes = (steps + _LARGEST).to(torch.uint8).view(-1)[: x.numel()]
        return pack(bits.pack(codes, 4), scales.float())

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n = shape.numel()
        packed, scales = unpack(payload, (torch.uint8, bits.length(n, 4)), (torch.float32, -(-n // self.block)))
        rows = self._rows(bits.unpack(packed, 4, n).float() - _LARGEST)
        values: Tensor = rows * scales[:, None]
        return values.reshape(-1)[:n].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, 4) + 4 * -(-spec.numel // self.block)
