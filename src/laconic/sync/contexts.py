"""What some rules see of the training beyond `SyncContext`: one protocol per idea, which a rule asks for by its type.

A rule with `class Mine(Sync[MixingContext])` gets a `MixingContext` in all of its methods; one that needs two of them
writes a protocol that extends both. The engine implements them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from laconic.sync.base import SyncContext
from laconic.topology.mixing import Matrix, Mixing
from laconic.worker import Actor, ActorMessage, Communication, Handle

if TYPE_CHECKING:
    from laconic.architecture.server.client import ServerClient


class OverlapContext(SyncContext, Protocol):
    """For rules that communicate while the next gradients are computed."""

    def start(self, name: str, communication: Communication[Any]) -> None:
        """Start a communication without waiting for it; `wait_for` completes it, perhaps in a later step."""
        ...

    def is_in_flight(self, name: str) -> bool:
        """Return whether a communication of this name was started and has not been waited for."""
        ...

    def has_arrived(self, name: str) -> bool:
        """Return whether the communication's pending messages have arrived, so that waiting for them takes no time."""
        ...

    def wait_for(self, name: str) -> Communication[Any]:
        """Wait until the communication of this name is complete, and return its result."""
        ...


class BucketContext(OverlapContext, Protocol):
    """For rules that exchange something of the model's size after a step, bucket by bucket."""

    def buckets(self, which: Sequence[int]) -> list[list[int]]:
        """Return the parameters with these indices in buckets: of one type and device, exchanged alike, and large
        enough that one operation for each of them costs little."""
        ...

    def average_vector(self, vector: Tensor, members: Sequence[int]) -> Communication[None]:
        """Replace a vector, in which one tensor for each parameter of a bucket lies behind another, by its mean over
        the group, as `average` finds it. Beside the compressor's memory nothing of it is kept, and that memory lies in
        the host's where the rule `offloads`."""
        ...

    def pipelined(self, communications: Iterable[Communication[Any]], width: int = 3) -> Communication[None]:
        """Run communications, so many of which are in flight at a time. Each is begun when it is its turn."""
        ...


class SteeringContext(SyncContext, Protocol):
    """For rules that decide by times and by what the script logs, or that set the batch and the learning rate."""

    @property
    def seconds(self) -> float:
        """The time by this worker's clock, in seconds."""
        ...

    @property
    def waited_seconds(self) -> float:
        """The seconds that this worker has spent waiting for others and for the network."""
        ...

    def logged(self, metric: str) -> float | None:
        """Return the value that this worker's script last logged for the metric with `laconic.log`, or None."""
        ...

    def steer(self, batch: int | None, rate: float) -> None:
        """Set, for the steps that follow, the samples per worker that `laconic.batch_size` returns (None: the script's
        own number) and the factor on the learning rate. Only rules with `steers` may call it."""
        ...


class MixingContext(OverlapContext, Protocol):
    """For rules that talk to the neighbours of a topology (`talks` is "mix"), while computing if they like."""

    def mixing(self, nodes: int | None = None) -> Mixing:
        """Return the topology's weights among the group's members; with `nodes`, among so many, which may be some of
        the members only, or more than there are workers."""
        ...

    def mix(self, tensors: list[Tensor], matrix: Matrix) -> Communication[Any]:
        """Return, on worker i, the sum over all workers j of matrix[i, j] times the tensors that j passes here.

        A cast rounds only what is sent, never what a worker keeps of its own, and preserves the mean over workers.
        """
        ...

    def neighbour_sum(self, tensors: list[Tensor], matrix: Matrix) -> Communication[Any]:
        """Return the weighted sum that `mix` returns, without this worker's own tensors."""
        ...

    def as_received(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return these tensors as neighbours would receive them, rounded to the format of messages."""
        ...


class PointToPointContext(MixingContext, Protocol):
    """For rules whose messages to single neighbours are more than a weighted sum."""

    def encode(self, tensors: list[Tensor]) -> list[Tensor]:
        """Compress one tensor per parameter without other workers, and return each one's payload as bytes."""
        ...

    def decode(self, payloads: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that payloads of `encode` hold, whichever worker encoded them."""
        ...

    def swap(
        self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]], control: float = 0.0
    ) -> Communication[Any]:
        """Send the tensors in `outgoing` to single members, and return those received from the members in `incoming`,
        whose values there give the shapes and types. `control` is the share of the bytes that counts as control."""
        ...


class ActorContext(SyncContext, Protocol):
    """For rules with an actor on a worker, which answers while that worker computes, or with memory that all share."""

    def host(self, name: str, member: int, build: Callable[[], Actor]) -> None:
        """Place an actor of this name on a member. Every member of the group must make the same call."""
        ...

    def call(self, name: str, message: ActorMessage, writes: bool) -> Handle:
        """Send a message to an actor that a member hosts, and return a handle on its answer."""
        ...

    def catch_up(self) -> None:
        """Let all events before this worker's time happen first, as is needed before shared memory is read."""
        ...


class ServerContext(OverlapContext, SteeringContext, Protocol):
    """For rules of a parameter server (`talks` is "server"), whose workers go by their own clocks."""

    @property
    def server(self) -> ServerClient:
        """The client of the parameter server."""
        ...


class EveryContext(PointToPointContext, ActorContext, BucketContext, ServerContext, Protocol):
    """All that any rule can ask for, which is what the engine implements."""
