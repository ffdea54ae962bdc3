"""Messages that are summed: what a codec has decoded, with zeros where it left something out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.optional import contraction_of, cost_of, spread_of, variance_of
from laconic.compression.wrapper import Wrapping
from laconic.registry import technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "zero_filled",
    paper="Renggli et al., SC 2019; Fei et al., SIGCOMM 2021 (what their collectives are given)",
    formula="y = Σ_j C(x_j)/N as a sum of dense tensors, with zeros where C left something out",
)
@dataclass(frozen=True)
class ZeroFilled(Wrapping):
    """Sum decoded messages as dense tensors with zeros; wraps the codec before it: `topk(0.01)+zero_filled+ef`.

    It is for architectures that send of a sum only what is not zero: `sparcml` and `omnireduce`. Beside others all
    values are sent, zeros too.
    """

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, Codec):
            return None
        return "only what one worker decodes alone is filled with zeros and summed; write topk+zero_filled"

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return SummedDense(inner)


@dataclass(frozen=True)
class SummedDense(Compressor):
    """The compressor that a chain with `zero_filled` becomes."""

    inner: Codec

    @property
    def cost(self) -> str:
        return cost_of(self.inner)

    def variance(self, spec: TensorSpec) -> float | None:
        return variance_of(self.inner, spec)

    def contraction(self, spec: TensorSpec) -> float | None:
        return contraction_of(self.inner, spec)

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        payload = self.inner.encode(x.float(), meet)
        own = self.inner.decode(payload, x.shape, meet)
        mean = yield meet.mean(own.clone())
        return Outcome(mean.to(x.dtype), state, own.to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return torch.float32.itemsize * spec.numel
