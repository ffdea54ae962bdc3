"""No compression: the gradient is sent as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laconic.claims import Lossless, Payload
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.registry import technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "none",
    aliases=["identity", "dense"],
    paper="plain data-parallel SGD",
    claims=[Lossless(), Payload(lambda spec, c: spec.nbytes)],
    formula="C(x) = x",
    worth_trying=["none"],
)
@dataclass(frozen=True)
class Identity(Compressor):
    """No compression: the gradient is sent as it is.

    In a message it accepts no tensor, because what is not accepted is sent dense, divided by the number of workers as
    it is copied into the message: the same operations in the same order as PyTorch's DDP, so that bits agree.
    """

    def accepts(self, spec: TensorSpec) -> bool:
        return False

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        own = x.clone()
        return Outcome((yield meet.mean(x)), state, sent=own)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.nbytes
