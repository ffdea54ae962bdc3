"""The contract of a compressor: explicit state, any number of communication rounds, and a price without running.

A compressor object holds hyper-parameters only. Its memory is a `State` that the engine keeps per tensor, so that it
can be saved, moved and compared; `exchange` takes the old one and returns the new one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.registry import Technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import (
    Broadcast,
    Gather,
    GatherRagged,
    Meet,
    Meets,
    Merge,
    Reduce,
    Request,
    Scatter,
    ScatterRagged,
    Swap,
)

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of an exchange: the common result, the new state and this worker's own contribution.

    `result` is what every worker applies. `sent` is this worker's own message, decoded: error feedback keeps the input
    minus `sent`, or minus `result` where a worker's own contribution cannot be separated from it (PowerSGD).
    """

    result: Tensor
    state: State = field(default_factory=dict)
    sent: Tensor | None = None

    def shaped(self, shape: Sequence[int]) -> Outcome:
        """Return the outcome with its tensors in this shape."""
        return Outcome(self.result.view(shape), self.state, None if self.sent is None else self.sent.view(shape))

    def to(self, dtype: torch.dtype) -> Outcome:
        """Return the outcome with its tensors in this format."""
        return Outcome(self.result.to(dtype), self.state, None if self.sent is None else self.sent.to(dtype))

    def split(self, shapes: Sequence[Sequence[int]]) -> list[Outcome]:
        """Split the outcome of tensors that were joined into one outcome for each of them."""
        lengths = [torch.Size(shape).numel() for shape in shapes]
        results = self.result.reshape(-1).split(lengths)
        sents = [None] * len(shapes) if self.sent is None else self.sent.reshape(-1).split(lengths)
        return [Outcome(r, self.state, s).shaped(shape) for r, s, shape in zip(results, sents, shapes, strict=True)]


Exchange = Generator[Request, Any, Outcome]
REQUESTS: dict[Meets, tuple[type, ...]] = {
    "reduce": (Reduce,),
    "gather": (Gather, GatherRagged),
    "scatter": (Scatter, ScatterRagged, Gather),
    "broadcast": (Broadcast, Reduce),
    "merge": (Merge,),
    "edge": (Swap,),
}


class Compressor(Technique):
    """A way to turn a tensor into payloads, to combine them with the other workers' payloads, and to decode the
    result.

    This is what every compressor has. What only some have (several messages, a bound of the error, a memory that is
    kept when workers leave, …) stands in `laconic.compression.optional`, as protocols to be implemented where needed.
    """

    axis: ClassVar[str] = "compression"

    @property
    def meets(self) -> Meets:
        """How the payloads of all workers are combined; an architecture that cannot do that is refused beside this
        compressor."""
        return "reduce"

    @property
    def asks(self) -> tuple[type, ...]:
        """The types of the requests that `exchange` yields; to be declared where they are not those of `meets`."""
        return REQUESTS[self.meets]

    def accepts(self, spec: TensorSpec) -> bool:
        """Tell whether this tensor is compressed; the other tensors of a message are sent dense beside it."""
        return spec.dtype.is_floating_point and spec.numel > 0

    def init(self, spec: TensorSpec) -> State:
        """Return the state of such a tensor before the first step."""
        return {}

    @abstractmethod
    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange one tensor: yield requests, receive their results and return the outcome. `x` and the state may be
        overwritten."""

    @abstractmethod
    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes that one of `size` workers hands over for such a tensor, without running anything; where
        that depends on the values, the largest possible number."""
