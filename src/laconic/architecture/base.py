"""The base class of architectures, which carry out a compressor's requests over a group or a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from laconic.errors import LaconicError
from laconic.registry import Technique
from laconic.values.wire import wire_factor
from laconic.worker import (
    Broadcast,
    Communication,
    Gather,
    GatherRagged,
    Group,
    Meets,
    Merge,
    Reduce,
    Request,
    Scatter,
)

if TYPE_CHECKING:
    from torch import Tensor

    from laconic.network.network_tree import Network
    from laconic.network.routes import Vector
    from laconic.topology.base import Topology


class Architecture(Technique):
    """How workers exchange: through a server, in a collective, or with neighbours.

    Operations that depend on each other are successive yields of handles.
    """

    axis: ClassVar[str] = "architecture"
    offers: ClassVar[tuple[str, ...]] = ("average",)
    """The kinds of communication that sync rules may ask of it: see `Sync.talks`."""
    collective: ClassVar[bool] = True
    """Whether all workers are one process group; otherwise they communicate through a server, and may join and
    leave."""
    carries: ClassVar[tuple[type, ...] | None] = (Reduce, Gather, GatherRagged, Scatter, Broadcast, Merge)
    """The requests that it can carry out; a compressor that needs others cannot be combined with it."""
    follows_content: ClassVar[bool] = False
    """Whether what it sends depends on what it has received, so that its own messages, echoed, would not do."""
    shares: ClassVar[bool] = False
    """Whether the parameters of all workers lie in one shared memory."""

    @property
    def servers(self) -> int:
        """The number of servers through which workers exchange, each with an equal share; 0: they do so directly."""
        return 0

    def on_hosts(self, hosts: int) -> Architecture:
        """Return this architecture with its servers on so many hosts, where it has any."""
        return self

    def over(self, topology: Topology | None) -> Architecture:
        """Return this architecture over the sentence's topology, where it uses one."""
        return self

    @abstractmethod
    def carry(self, request: Request, transport: Any) -> Communication[Any]:
        """Carry out a request: yield handles, receive their results, return the request's result.

        The transport is what connects the workers: a `Group`, or a `ServerClient` where they are not collective.
        """

    @abstractmethod
    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        """Return the bytes that one worker sends, in the mean over all, to combine payloads of so many bytes among
        `size` workers."""

    def sum_seconds(self, payload_bytes: Vector, network: Network) -> tuple[Vector, Vector] | None:
        """Return what sums of so many bytes of every worker of a network take, and for how long each occupies the
        busiest link; None where the transport's own all-reduce makes them."""
        return None

    def control_bytes(self, tensors: int, size: int, rounds: int = 1, ragged: bool = False, messages: int = 1) -> float:
        """Return the most control bytes that one worker sends for so many float32 tensors in so many messages, of which
        a compressor exchanges each in so many rounds: for each tensor a flag, in float32 and all-reduced, whether any
        worker had a gradient for it; and its length in every round, where payloads are ragged."""
        flags = 4 * tensors * wire_factor("all_reduce", size)
        return flags + (8 * tensors * (size - 1) * rounds if ragged else 0)

    def swap(
        self,
        outgoing: Mapping[int, Sequence[Tensor]],
        incoming: Mapping[int, Sequence[Tensor]],
        group: Group,
        control: float = 0.0,
    ) -> Communication[Any]:
        """Send the `outgoing` tensors to these members, and fill the `incoming` ones with what those members send: for
        sync rules that mix with neighbours."""
        raise LaconicError(f"{self.name} cannot send to single neighbours; write gossip in its place")
