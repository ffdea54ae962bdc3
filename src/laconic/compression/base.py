"""The compressor's contract: explicit state, any number of rounds, a price without running.

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
from laconic.worker import Edge, Gather, GatherRagged, Meet, Meets, Merge, Pass, Reduce, Request, Scatter, Swap, Tell

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The end of an exchange.

    `result` is what everyone applies. `sent` is this worker's own message, decoded: error feedback keeps the input
    minus `sent`, or minus `result` where the method's own contribution cannot be told apart (PowerSGD).
    """

    result: Tensor
    state: State = field(default_factory=dict)
    sent: Tensor | None = None

    def shaped(self, shape: Sequence[int]) -> Outcome:
        """The same in a tensor's own shape."""
        return Outcome(self.result.view(shape), self.state, None if self.sent is None else self.sent.view(shape))

    def split(self, shapes: Sequence[Sequence[int]]) -> list[Outcome]:
        """One for each of the tensors that were joined."""
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
    "tell": (Tell, Reduce),
    "merge": (Merge,),
    "ring": (Pass, Gather),
    "edge": (Swap,),
}


class Compressor(Technique):
    """From tensor to payload and back, meeting the others' payloads on the way."""

    axis: ClassVar[str] = "compression"
    wire: ClassVar[torch.dtype | None] = None
    """The format in which it sends, where casting is all it does: then it can also be told to one worker alone."""

    joins: ClassVar[bool] = False
    """Whether the tensors of a message are compressed as one."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Settings of the user's optimizer that it applies itself: zero there while it governs, in `meet.settings` here."""
    takes_factors: ClassVar[bool] = False
    """Whether it asks for what a linear layer's gradient is made of (`meet.factors`), which must be kept for it."""
    cost: ClassVar[str] = "elementwise"
    """What encoding takes, roughly: elementwise, reduce, select, transform, matmul."""

    @property
    def meets(self) -> Meets:
        """How its payloads meet; an architecture that cannot carry that out is refused beside it."""
        return "reduce"

    @property
    def conserved(self) -> tuple[str, ...]:
        """State entries whose sum over workers is kept when their number changes; the others are rank 0's."""
        return ()

    def accepts(self, spec: TensorSpec) -> bool:
        """Whether this tensor is compressed at all; the rest of a message travels dense beside it."""
        return spec.dtype.is_floating_point and spec.numel > 0

    def init(self, spec: TensorSpec) -> State:
        return {}

    def memory_bytes(self, specs: Sequence[TensorSpec]) -> int:
        """What it remembers of such tensors, without making any of it."""
        with torch.device("meta"):
            states = [self.init(spec) for spec in specs if self.accepts(spec)]
        return sum(tensor.nbytes for state in states for tensor in state.values())

    @abstractmethod
    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Yield requests, receive their results, return the outcome. `x` and the state may be overwritten."""

    def exchange_all(self, xs: Sequence[Tensor], states: Sequence[State], meets: Sequence[Meet]) -> Exchanges | None:
        """The same for all tensors of a message in one conversation, where that is faster than one for each and its
        bytes are the same; None where it is not."""
        return None

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        """With one neighbour alone, where it meets the others so: the result is how far the neighbour's tensor is from
        this one's, as both understand it."""
        raise StrategyError(f"{self.name} speaks to everyone at once; between neighbours write power_gossip")

    @abstractmethod
    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """What one worker hands over for such a tensor among `size` workers, without running anything; where that
        depends on the values, the most."""

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Its messages, each with how it meets the others and its bytes; together they are `payload_bytes`."""
        return ((self.meets, self.payload_bytes(spec, size)),)

    def variance(self, spec: TensorSpec) -> float | None:
        """ω where it is unbiased with E|C(v) - v|² ≤ ω|v|²; None where it makes no such promise."""
        return None

    def spread(self, spec: TensorSpec) -> float:
        """ω of what it rounds at random, whatever else it leaves out: what a memory must be guarded against."""
        return self.variance(spec) or 0.0

    def contraction(self, spec: TensorSpec) -> float | None:
        """δ where E|C(v) - v|² ≤ (1 - δ)|v|²; None where it makes no such promise."""
        omega = self.variance(spec)
        return None if omega is None or omega >= 1 else 1 - omega

    @property
    def settling(self) -> int:
        """Steps at the start in which it says something else than what it is priced at."""
        return 0

    @property
    def refuses_memory(self) -> str | None:
        """Why error feedback must not wrap it, if it must not."""
        return None

    @property
    def asks(self) -> tuple[type, ...]:
        """The requests it makes."""
        return REQUESTS[self.meets]

    @property
    def has_memory(self) -> bool:
        """Whether steps depend on earlier ones, so that a second backward before `step()` makes no sense."""
        return bool(self.conserved or self.init(TensorSpec("any", (2, 2), torch.float32)))
