"""Equally spaced levels whose numbers are entropy-coded: a constant number of bits a coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Unbiased
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, golomb, huffman
from laconic.compression.level_tables import bucket_norms, rounded
from laconic.compression.payload import pack
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "suresh_varlen",
    paper="Suresh, Yu, Kumar, McMahan, ICML 2017",
    claims=[Unbiased()],
    holds="code length for k = √n + 1: below 2 + log2(1/2 + 5/4) = 2.81 bits a coordinate and the histogram",
    formula="Q(x)_i = lo + √2|x|₂·r/(k-1), r at random a neighbour, k = √n + 1; r in Huffman codes",
)
@dataclass(frozen=True)
class VariableLength(Codec):
    """k levels over √2 of the l2 norm from the smallest value on, in Huffman codes behind a histogram of the levels.

    With k = √n + 1 the error of the mean is O(1/N) in O(1) bits a coordinate: most of the wide span is empty, which
    costs next to nothing. The histogram is written as the places of k - 1 bars among n stars, in Golomb codes. Reading
    chosen: Huffman where the paper's bound has arithmetic codes, and full bytes, an overhead for tensors of some tens
    of values. A tensor that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    ragged: ClassVar[bool] = True
    levels: int = knob(
        0, low=0, gentler="more", doc="k: number of levels, from 2 on; 0: the root of the tensor's size, plus one"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels == 1:
            raise StrategyError("suresh_varlen cannot round to a single level; write levels=2, or 0 for √n + 1")

    def count(self, numel: int) -> int:
        """Return the number of levels for a tensor of `numel` values."""
        return self.levels or math.isqrt(numel) + 1

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        n, k = flat.numel(), self.count(flat.numel())
        low, span = flat.min().view(1), math.sqrt(2) * bucket_norms(flat, n, "l2")
        draws = kernels.uniform(meet.key(), 0, n, x.device)
        codes = rounded((flat - low) / span.where(span != 0, 1), _equal(k, x.device), draws)
        counts = torch.bincount(codes, minlength=k)
        bars = torch.cumsum(counts[:-1] + 1, 0) - 1
        return pack(low, span, golomb.write(bars, n + k - 1), huffman.write(codes, counts))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, k = shape.numel(), self.count(shape.numel())
        low, span = payload[:8].clone().view(torch.float32)
        bars, head = golomb.read(payload[8:], k - 1, n + k - 1)
        ends = torch.cat([bars.new_full((1,), -1), bars, bars.new_full((1,), n + k - 1)])
        codes = huffman.read(payload[8 + head :], ends.diff() - 1)
        decoded: Tensor = low + _equal(k, payload.device)[codes] * span
        return decoded.view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω: each value loses at most a quarter of a squared step."""
        return spec.numel / (2 * (self.count(spec.numel) - 1) ** 2)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the largest number of bytes: no fixed width is shorter than Huffman's codes."""
        n, k = spec.numel, self.count(spec.numel)
        return 8 + golomb.most(k - 1, n + k - 1) + bits.length(n, bits.width(k - 1))


def _equal(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) / (count - 1)
