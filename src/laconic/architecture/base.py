"""The architecture's contract: carry out what a compressor asks, over a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from laconic.errors import LaconicError
from laconic.registry import Technique
from laconic.worker import (
    Broadcast,
    Gather,
    GatherRagged,
    Group,
    Handle,
    Meets,
    Merge,
    Reduce,
    Request,
    RingPass,
    Scatter,
)

if TYPE_CHECKING:
    from torch import Tensor

    from laconic.topology.base import Topology

Carrying = Generator[Handle, Any, Any]


class Architecture(Technique):
    """Whom workers tell. Steps that depend on each other are successive yields of handles."""

    axis: ClassVar[str] = "architecture"
    offers: ClassVar[tuple[str, ...]] = ("average",)
    """What sync rules may ask of it: see `Sync.talks`."""
    collective: ClassVar[bool] = True
    """Whether all workers are one process group; otherwise they meet at a server, and may come and go."""
    carries: ClassVar[tuple[type, ...] | None] = (Reduce, Gather, GatherRagged, Scatter, Broadcast, Merge, RingPass)
    """The requests it can carry out; a compressor that asks for others is refused beside it."""
    shares: ClassVar[bool] = False
    """Whether the parameters of all workers lie in one memory."""

    def over(self, topology: Topology | None) -> Architecture:
        """Itself, laid out over the sentence's topology where it has use for one."""
        return self

    @abstractmethod
    def carry(self, request: Request, line: Any) -> Carrying:
        """Yield handles, receive their results, return the request's result. The line is what joins the workers: a
        `Group`, or a server's client where they are not collective."""

    @abstractmethod
    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        """What one worker sends, in the mean over all, to have payloads of so many bytes meet among `size` workers."""

    def swap(
        self,
        told: Mapping[int, Sequence[Tensor]],
        heard: Mapping[int, Sequence[Tensor]],
        group: Group,
        control: float = 0.0,
    ) -> Carrying:
        """Give these tensors to these members, and fill those with what those members give: for "mix"."""
        raise LaconicError(f"{self.name} has no neighbours to speak to one by one; write gossip in its place")
