"""Rotate, then round: a random rotation makes all coordinates alike, so that few levels do."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Unbiased
from laconic.compression.base import TensorSpec
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, technique
from laconic.worker import Meet


@technique(
    "suresh_rotated",
    aliases=["rotated"],
    paper="Suresh, Yu, Kumar, McMahan, ICML 2017",
    claims=[Unbiased()],
)
@dataclass(frozen=True)
class Rotated(Codec):
    """k levels between the least and the largest coordinate, after a random rotation that all workers share.

    The rotation is a Walsh–Hadamard transform behind random signs, of the tensor filled up to a power of two; decoded
    coordinates are averaged first and turned back once. With 0 levels nothing is rounded. A tensor with a value that is
    not finite is not finite.
    """

    cost: ClassVar[str] = "transform"
    levels: int = knob(16, low=0, high=256, doc="k; 0: no rounding at all")

    @property
    def _bits(self) -> int:
        return bits.width(self.levels - 1) if self.levels else 32

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        z = rotate(x.reshape(-1), meet.key("signs", shared=True))
        if not self.levels:
            return pack(z)
        low, span = z.min(), z.max() - z.min()
        steps = (z - low) * torch.where(span > 0, (self.levels - 1) / span, 0.0)
        codes = (steps + kernels.uniform(meet.key(), 0, z.numel(), z.device)).floor().nan_to_num(0.0)
        return pack(bits.pack(codes.clamp(0, self.levels - 1), self._bits), torch.stack([low, span]))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        z = self._read(payload, shape.numel())
        return turned_back(z, meet.key("signs", shared=True))[: shape.numel()].view(shape)

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Any, Any, Tensor]:
        rows = yield meet.gather(payload)
        mean = torch.stack([self._read(row, like.numel()) for row in rows]).mean(dim=0)
        return turned_back(mean, meet.key("signs", shared=True))[: like.numel()].view(like.shape)

    def _read(self, payload: Tensor, numel: int) -> Tensor:
        """Rotated coordinates."""
        n = _power(numel)
        if not self.levels:
            return unpack(payload, (torch.float32, n))[0]
        packed, (low, span) = unpack(payload, (torch.uint8, bits.length(n, self._bits)), (torch.float32, 2))
        z: Tensor = low + bits.unpack(packed, self._bits, n).float() * (span / max(1, self.levels - 1))
        return z

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(_power(spec.numel), self._bits) + 8 * bool(self.levels)


def _power(numel: int) -> int:
    return 1 << max(0, numel - 1).bit_length()


def rotate(x: Tensor, key: int) -> Tensor:
    """Random signs, then the transform."""
    padded = torch.nn.functional.pad(x, (0, _power(x.numel()) - x.numel()))
    return hadamard(padded * signs(key, padded.numel(), x.device))


def turned_back(z: Tensor, key: int) -> Tensor:
    return hadamard(z) * signs(key, z.numel(), z.device)


def signs(key: int, count: int, device: torch.device) -> Tensor:
    return (kernels.integers(key, 0, count, device) & 1).float() * 2 - 1


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Walsh–Hadamard transform of a vector whose length is a power of two; its own inverse."""
    n, width = x.numel(), 1
    while width < n:
        pairs = x.view(-1, 2, width)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(-1)
        width *= 2
    return torch.mul(x, n**-0.5)
