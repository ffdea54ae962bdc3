"""A Hadamard transform of short blocks around a codec: outliers are spread before values share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.optional import contraction_of, variance_of
from laconic.compression.wrapper import Wrapping
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "hadamard",
    paper="Jia, Xie, Lu et al. (SDP4Bit), NeurIPS 2024",
    formula="Q(x) = Hᵀ·C(H·x) in blocks of so many values, H Walsh–Hadamard and orthonormal",
)
@dataclass(frozen=True)
class Hadamard(Wrapping):
    """Multiply each block of values with an orthonormal Hadamard matrix before the codec, and with its transpose after.

    A value that is much larger than its neighbours is spread over its block, so that the others keep more of their
    bits: strided_bits(4, 128)+hadamard. Nothing is random. Lengths that the block does not divide are padded with
    zeros, and the padding is sent.
    """

    block: int = knob(32, choices=(2, 4, 8, 16, 32, 64, 128, 256), doc="values that are transformed together")

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, Codec) and not inner.ragged:
            return None
        return "a transform stands around a codec whose messages have a known length; write strided_bits(4)+hadamard"

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return Transformed(inner, self.block)


@dataclass(frozen=True)
class Transformed(Codec):
    """The codec that a chain with `hadamard` becomes."""

    inner: Codec
    block: int

    @property
    def unit(self) -> int:
        return max(self.inner.unit, self.block)

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self.inner.encode(self._turned(x.reshape(-1)), meet)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        padded = torch.Size([self._padded(shape.numel())])
        return self._turned(self.inner.decode(payload, padded, meet))[: shape.numel()].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(self._spec(spec), size)

    def variance(self, spec: TensorSpec) -> float | None:
        return variance_of(self.inner, self._spec(spec))

    def contraction(self, spec: TensorSpec) -> float | None:
        return contraction_of(self.inner, self._spec(spec))

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.name, (self._padded(spec.numel),), torch.float32)

    def _padded(self, numel: int) -> int:
        return -(-numel // self.block) * self.block

    def _turned(self, x: Tensor) -> Tensor:
        """Return the transform of each block, which is its own inverse: the matrix is symmetric and orthonormal."""
        whole = torch.nn.functional.pad(x, (0, self._padded(x.numel()) - x.numel())).view(-1, self.block)
        turned: Tensor = whole @ matrix(self.block).to(x.device)
        return turned.flatten()


@cache
def matrix(size: int) -> Tensor:
    """Return the orthonormal Walsh-Hadamard matrix of this size, a power of two."""
    found = torch.ones(1, 1)
    while len(found) < size:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found.div(size**0.5)
