"""Levels between the smallest and the largest value, alone or after a random rotation that makes few levels suffice."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload, Unbiased
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.errors import StrategyError
from laconic.kernels.reference.rotation import rotated_length
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Request


@technique(
    "suresh_klevel",
    aliases=["klevel"],
    paper="Suresh, Yu, Kumar, McMahan, ICML 2017",
    claims=[Unbiased(), Payload(lambda spec, c: -(-spec.numel * (c.levels - 1).bit_length() // 8) + 8)],
    holds="k levels cut the error by (k - 1)²: by 9, 225 and 65,025 for k = 4, 16 and 256",
    formula="Q(x)_i = lo + (hi - lo)·r/(k-1), r at random a neighbour of (k-1)(x_i - lo)/(hi - lo)",
)
@dataclass(frozen=True)
class KLevel(Codec):
    """k equally spaced levels from the smallest to the largest coordinate, rounded at random so that the mean is right.

    Two levels are the paper's binary quantisation. A tensor that contains a value that is not finite decodes to values
    that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    levels: int = knob(16, low=2, high=256, gentler="more", doc="k: number of levels")

    @property
    def _bits(self) -> int:
        return bits.width(self.levels - 1)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self._write(x.reshape(-1), meet)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return self._read(payload, shape.numel()).view(shape)

    def _write(self, z: Tensor, meet: Meet) -> Tensor:
        low, span = z.min(), z.max() - z.min()
        steps = (z - low) / span.where(span > 0, 1) * (self.levels - 1)
        whole = steps.floor()
        codes = whole + (kernels.uniform(meet.key(), 0, z.numel(), z.device) < steps - whole)
        codes = codes.nan_to_num(0.0).clamp(0, self.levels - 1)
        return pack(bits.pack(codes, self._bits), torch.stack([low, span]))

    def _read(self, payload: Tensor, numel: int) -> Tensor:
        packed, (low, span) = unpack(payload, (torch.uint8, bits.length(numel, self._bits)), (torch.float32, 2))
        z: Tensor = low + bits.unpack(packed, self._bits, numel).float() * (span / (self.levels - 1))
        return z

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω: each value loses at most a quarter of a squared step, and the span is at most √2 of the norm."""
        return spec.numel / (2 * (self.levels - 1) ** 2)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, self._bits) + 8


@technique(
    "suresh_rotated",
    aliases=["rotated"],
    paper="Suresh, Yu, Kumar, McMahan, ICML 2017",
    claims=[Unbiased()],
    formula="Q(x) = D·H·q(H·D·x), H Walsh–Hadamard, D random signs that all share, q = klevel",
)
@dataclass(frozen=True)
class Rotated(KLevel):
    """k levels between the smallest and the largest coordinate, after a random rotation that all workers share.

    The rotation, a Walsh–Hadamard transform behind random signs, of the tensor padded to a power of two, makes all
    coordinates alike; decoded coordinates are averaged first and rotated back once. With 0 levels nothing is rounded. A
    tensor that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "transform"
    levels: int = knob(16, low=0, high=256, gentler="more", doc="k: number of levels; 0: no rounding at all")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels == 1:
            raise StrategyError("suresh_rotated cannot round to a single level; write levels=2, or 0 for no rounding")

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        z = kernels.rotate(x.reshape(-1), meet.key("signs", shared=True))
        return self._write(z, meet) if self.levels else pack(z)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return self._rotate_back(self._rotated(payload, shape), shape, meet)

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Request, Any, Tensor]:
        rows = yield meet.gather(payload)
        mean = torch.stack([self._rotated(row, like.shape) for row in rows]).mean(dim=0)
        return self._rotate_back(mean, like.shape, meet)

    def _rotated(self, payload: Tensor, shape: torch.Size) -> Tensor:
        n = rotated_length(shape.numel())
        return self._read(payload, n) if self.levels else unpack(payload, (torch.float32, n))[0]

    def _rotate_back(self, z: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return kernels.rotate_back(z, meet.key("signs", shared=True))[: shape.numel()].view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω in the mean over rotations (the paper's theorem 3)."""
        return (2 * math.log(rotated_length(spec.numel)) + 2) / (self.levels - 1) ** 2 if self.levels else 0.0

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        n = rotated_length(spec.numel)
        return bits.length(n, self._bits) + 8 if self.levels else 4 * n
