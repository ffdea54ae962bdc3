"""3LC: three values, five to a byte, and runs of zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import TensorSpec
from laconic.compression.codec import Codec
from laconic.compression.codes import trits
from laconic.compression.payload import pack
from laconic.registry import knob, technique
from laconic.worker import Meet


@technique(
    "three_lc",
    paper="Lim, Andersen, Kaminsky, MLSys 2019",
    evidence="published",
    reproduces="1.6 bits a ternary value, and 70 zeros in a byte: 280 times less than floats",
    formula="Q(x)_i = M·sign(x_i) where |x_i| ≥ M/2, else 0; M = s·max|x|",
)
@dataclass(frozen=True)
class ThreeLC(Codec):
    """-M, 0 or M, where M is a multiple of the largest magnitude: five to a byte, and up to seventy zeros in one.

    A larger `sparsity` makes more zeros, and leaves more to the memory it needs (three_lc+ef). Small tensors go dense.
    A tensor with a value that is not finite is not finite. The paper's server answers in the same code, with a memory
    of its own: three_lc(runs=false)+two_hop(memory=true)+ef, as two hops take messages of a known length only.
    """

    cost: ClassVar[str] = "reduce"
    sparsity: float = knob(1.0, low=1, below=2, doc="s: only what is at least s/2 of the largest is said")
    least: int = knob(64, low=1, doc="elements below which a tensor goes dense")
    runs: bool = knob(True, doc="whether runs of zeros are shortened, to a length that depends on the values")

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.runs

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype.is_floating_point and spec.numel >= self.least

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        most = self.sparsity * x.abs().max()
        said = trits.pack(torch.where(x.abs() >= most / 2, x.sign(), 0.0).to(torch.int8))
        return pack(most.view(1), trits.shorten(said) if self.runs else said)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        most, said = payload[:4].clone().view(torch.float32), payload[4:]
        digits = trits.unpack(trits.lengthen(said) if self.runs else said, shape.numel())
        return (digits.float() * most).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 + trits.length(spec.numel)
