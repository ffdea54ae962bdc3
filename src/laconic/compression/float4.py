"""Four-bit floats: a sign and three bits of exponent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.claims import Payload
from laconic.compression.codec import Codec
from laconic.registry import technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_SCALE_BYTES = 4
_LEVELS = torch.tensor([0.0, *(2.0**k for k in range(-6, 1))])
"""The levels as shares of the largest value: zero, and seven that double up to it."""
_BETWEEN = (_LEVELS[1:] + _LEVELS[:-1]) / 2


@technique(
    "e3m0",
    aliases=["float4", "fp4"],
    paper="Douillard et al., arXiv 2501.18512 (on the wire of Streaming DiLoCo)",
    claims=[Payload(lambda spec, c: -(-spec.numel // 2) + _SCALE_BYTES)],
    formula="Q(x)_i = s·sign(x_i)·c, c in 0, 2^-6, …, 1/2, 1 the nearest to |x_i|/s, s = max|x|",
    worth_trying=["e3m0+ef"],
)
@dataclass(frozen=True)
class E3M0(Codec):
    """A sign and a power of two in 4 bits a value, gathered, decoded and averaged in float32.

    Biased: the nearest of 15 values, which are zero and ± the tensor's largest magnitude, halved up to six times. The
    paper describes no scale and no zero; here a tensor's largest magnitude is sent with it, and the lowest exponent
    means zero, so that parameters that have not moved decode to zero. Where a value is not finite, none of its tensor
    is.
    """

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return encode(x)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return decode(payload, shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return -(-spec.numel // 2) + _SCALE_BYTES


def encode(x: Tensor) -> Tensor:
    """Encode two values in a byte, the first in its lower half; the scale's four bytes come last."""
    flat = x.detach().reshape(-1).float()
    scale = flat.abs().max().reshape(1)
    codes = torch.bucketize(flat.abs() / scale.where(scale > 0, 1), _BETWEEN.to(x.device), right=True).to(torch.uint8)
    codes += 8 * flat.signbit().to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, len(codes) % 2))
    return torch.cat([codes[::2] + 16 * codes[1::2], scale.view(torch.uint8)])


def decode(payload: Tensor, shape: torch.Size) -> Tensor:
    """Return the values that `encode` encoded, to the precision of 4 bits, in float32."""
    pairs, scale = payload.split([len(payload) - _SCALE_BYTES, _SCALE_BYTES])
    codes = torch.stack([pairs & 15, pairs >> 4], dim=1).view(-1)[: shape.numel()].int()
    signed = torch.cat([_LEVELS, -_LEVELS]).to(payload.device)
    values: Tensor = signed[codes] * scale.clone().view(torch.float32)
    return values.view(shape)
