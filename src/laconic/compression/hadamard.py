"""A Hadamard transform of short blocks around a codec: outliers are spread before values share a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.optional import contraction_of, variance_of
from laconic.compression.wrapper import Wrapping
from laconic.kernels.reference.rotation import Turned
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
    bits: strided_bits(4, 128)+hadamard. Nothing is random in the paper's transform. Where the values of a block share a
    sign, as gradients of a layer may whose inputs are never negative, it makes an outlier of their sum instead, and the
    others keep fewer bits; `signs`, which the paper does not have, multiplies values by ±1 before (H·D in the place of
    H), so that a common sign is none any more. Lengths that the block does not divide are padded with zeros, and the
    padding is sent.
    """

    block: int = knob(32, choices=(2, 4, 8, 16, 32, 64, 128, 256), doc="values that are transformed together")
    signs: bool = knob(False, doc="random signs before the transform, the same in all blocks, steps and workers")

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, Codec) and not inner.ragged:
            return None
        return "a transform stands around a codec whose messages have a known length; write strided_bits(4)+hadamard"

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return Transformed(inner, self.block, self.signs)


@dataclass(frozen=True)
class Transformed(Codec):
    """The codec that a chain with `hadamard` becomes."""

    inner: Codec
    block: int
    signs: bool = False

    @property
    def unit(self) -> int:
        return max(self.inner.unit, self.block)

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    @property
    def lists(self) -> bool:
        return self.inner.encodes_lists

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        lengths = [x.numel() for x in xs]
        if errors is not None:
            torch._foreach_add_(list(errors), list(xs))
            xs = errors
        padded = [self._padded(n) for n in lengths]
        payload = self.inner.feed_all(
            kernels.hadamard_blocks(xs, padded, self.block, turned=self._turned("before")), None, meets
        )
        if errors is not None:
            sent = self.inner.means(payload.view(1, -1), padded)
            kernels.hadamard_blocks(sent, lengths, self.block, errors, shares, True, self._turned("after"))
        return payload

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Return the means, which are taken before they are transformed back: once, however many workers there are."""
        means = self.inner.means(rows, [self._padded(n) for n in lengths])
        return list(kernels.hadamard_blocks(means, lengths, self.block, out, shares, turned=self._turned("after")))

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        padded = [self._padded(flat.numel())]
        (z,) = kernels.hadamard_blocks([flat], padded, self.block, turned=self._turned("before"))
        return self.inner.encode(z, meet)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n = shape.numel()
        values = self.inner.decode(payload, torch.Size([self._padded(n)]), meet)
        return kernels.hadamard_blocks([values], [n], self.block, turned=self._turned("after"))[0].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(self._spec(spec), size)

    def variance(self, spec: TensorSpec) -> float | None:
        return variance_of(self.inner, self._spec(spec))

    def contraction(self, spec: TensorSpec) -> float | None:
        return contraction_of(self.inner, self._spec(spec))

    def _turned(self, side: Literal["before", "after"]) -> Turned:
        """Return on which side of the transform values are multiplied by signs, where they are at all."""
        return side if self.signs else ""

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.name, (self._padded(spec.numel),), torch.float32)

    def _padded(self, numel: int) -> int:
        return -(-numel // self.block) * self.block
