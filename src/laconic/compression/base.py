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

from laconic.errors import StrategyError
from laconic.registry import Technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import (
    Broadcast,
    Edge,
    Gather,
    GatherRagged,
    Meet,
    Meets,
    Merge,
    Reduce,
    Request,
    RingPass,
    Scatter,
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

    def split(self, shapes: Sequence[Sequence[int]]) -> list[Outcome]:
        """Split the outcome of tensors that were joined into one outcome for each of them."""
        lengths = [torch.Size(shape).numel() for shape in shapes]
        results = self.result.reshape(-1).split(lengths)
        sents = [None] * len(shapes) if self.sent is None else self.sent.reshape(-1).split(lengths)
        return [Outcome(r, self.state, s).shaped(shape) for r, s, shape in zip(results, sents, shapes, strict=True)]


Exchange = Generator[Request, Any, Outcome]
Exchanges = Generator[Request, Any, list[Outcome]]
REQUESTS: dict[Meets, tuple[type, ...]] = {
    "reduce": (Reduce,),
    "gather": (Gather, GatherRagged),
    "scatter": (Scatter, Gather),
    "broadcast": (Broadcast, Reduce),
    "merge": (Merge,),
    "ring": (RingPass, Gather),
    "edge": (Swap,),
}


class Compressor(Technique):
    """A way to turn a tensor into payloads, to combine them with the other workers' payloads, and to decode the
    result."""

    axis: ClassVar[str] = "compression"
    wire: ClassVar[torch.dtype | None] = None
    """The format that is sent, if casting is all that this compressor does; such a compressor can also be used in a
    message to a single worker."""

    joins: ClassVar[bool] = False
    """Whether all tensors of a message are compressed as one."""
    transparent: ClassVar[bool] = False
    """Whether it only moves what the other words of its chain encode, and loses nothing by itself."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Settings of the user's optimizer that this compressor applies itself: they are zero in the optimizer while it is
    in use, and are found in `meet.settings`."""
    takes_factors: ClassVar[bool] = False
    """Whether it asks for the factors that a linear layer's gradient is the product of (`meet.factors`), which must be
    kept for it."""
    cost: ClassVar[str] = "elementwise"
    """The rough cost of encoding: elementwise, reduce, select, transform or matmul."""

    @property
    def meets(self) -> Meets:
        """How the payloads of all workers are combined; an architecture that cannot do that is refused beside this
        compressor."""
        return "reduce"

    @property
    def conserved(self) -> tuple[str, ...]:
        """The state entries whose sum over workers is kept when the number of workers changes; of the others, rank 0's
        are kept."""
        return ()

    def accepts(self, spec: TensorSpec) -> bool:
        """Tell whether this tensor is compressed; the other tensors of a message are sent dense beside it."""
        return spec.dtype.is_floating_point and spec.numel > 0

    def init(self, spec: TensorSpec) -> State:
        """Return the state of such a tensor before the first step."""
        return {}

    def memory_bytes(self, specs: Sequence[TensorSpec]) -> int:
        """Return the bytes of the state for such tensors, without allocating any of it."""
        with torch.device("meta"):
            states = [self.init(spec) for spec in specs if self.accepts(spec)]
        return sum(tensor.nbytes for state in states for tensor in state.values())

    @abstractmethod
    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange one tensor: yield requests, receive their results and return the outcome. `x` and the state may be
        overwritten."""

    def exchange_all(self, xs: Sequence[Tensor], states: Sequence[State], meets: Sequence[Meet]) -> Exchanges | None:
        """Exchange all tensors of a message in one sequence of requests, or return None.

        A compressor implements this where it is faster than one exchange for each tensor and takes the same bytes.
        """
        return None

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        """Exchange with one neighbour alone, for compressors that work along the edges of a topology.

        The result is the difference between the neighbour's tensor and this worker's, as both of them approximate it.
        """
        raise StrategyError(f"{self.name} exchanges with all workers at once; between neighbours write power_gossip")

    @abstractmethod
    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes that one of `size` workers hands over for such a tensor, without running anything; where
        that depends on the values, the largest possible number."""

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the messages of an exchange, each as how it is combined with the others' and its bytes; the bytes add
        up to `payload_bytes`."""
        return ((self.meets, self.payload_bytes(spec, size)),)

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω if C is unbiased with E|C(v) - v|² ≤ ω|v|², or None if it makes no such promise."""
        return None

    def spread(self, spec: TensorSpec) -> float:
        """Return ω of the part that is rounded at random, whatever else is left out: what error feedback must be
        guarded against."""
        return self.variance(spec) or 0.0

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ if E|C(v) - v|² ≤ (1 - δ)|v|², or None if C makes no such promise."""
        omega = self.variance(spec)
        return None if omega is None or omega >= 1 else 1 - omega

    @property
    def settling(self) -> int:
        """The number of steps at the start whose messages differ from the ones that `prices` describes."""
        return 0

    @property
    def refuses_memory(self) -> str | None:
        """The reason why error feedback must not wrap this compressor, or None if it may."""
        return None

    @property
    def asks(self) -> tuple[type, ...]:
        """The types of the requests that `exchange` yields."""
        return REQUESTS[self.meets]

    @property
    def has_memory(self) -> bool:
        """Whether steps depend on earlier ones, so that a second backward before `step()` makes no sense."""
        return bool(self.conserved or self.init(TensorSpec("any", (2, 2), torch.float32)))
