"""3LC: three values, five to a byte, with runs of zeros shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.codec import Codec
from laconic.compression.codes import trits
from laconic.kernels.messages import written
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "three_lc",
    paper="Lim, Andersen, Kaminsky, MLSys 2019",
    holds="1.6 bits a ternary value, and 70 zeros in a byte: 280 times less than floats",
    formula="Q(x)_i = M·sign(x_i) where |x_i| ≥ M/2, else 0; M = s·max|x|",
    worth_trying=["three_lc+ef"],
)
@dataclass(frozen=True)
class ThreeLC(Codec):
    """-M, 0 or M, where M is a multiple of the largest magnitude: five to a byte, and up to seventy zeros in one.

    A larger `sparsity` makes more zeros, and leaves more to the memory it needs (three_lc+ef). Small tensors are sent
    dense. A tensor that contains a value that is not finite decodes to values that are not finite. The paper's server
    answers in the same code, with a memory of its own: three_lc(runs=false)+two_hop(memory=true)+ef, as two hops take
    messages of a known length only. Runs are shortened on the CPU, wherever the tensor is: on GPUs runs=false is many
    times faster.
    """

    cost: ClassVar[str] = "reduce"
    sparsity: float = knob(
        1.0, low=1, below=2, gentler="less", doc="s: only values of at least s/2 of the largest magnitude are sent"
    )
    least: int = knob(64, low=1, doc="elements below which a tensor is sent dense")
    runs: bool = knob(True, doc="whether runs of zeros are shortened, to a length that depends on the values")

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.runs

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype.is_floating_point and spec.numel >= self.least

    @property
    def lists(self) -> bool:
        return not self.runs

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        return kernels.encode_trits(xs, errors, self.sparsity)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        return written(kernels.mean_of_trits(rows, lengths), out)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self._shortened(kernels.encode_trits([x.reshape(-1)], None, self.sparsity))

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        if not error.is_contiguous():
            return super().feed(x, error, meet)
        return self._shortened(kernels.encode_trits([x.reshape(-1)], [error.view(-1)], self.sparsity))

    def _shortened(self, payload: Tensor) -> Tensor:
        return torch.cat([payload[:4], trits.shorten(payload[4:])]) if self.runs else payload

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        if self.runs:
            payload = torch.cat([payload[:4], trits.lengthen(payload[4:])])
        return self.means(payload.view(1, -1), [shape.numel()])[0].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 + trits.length(spec.numel)
