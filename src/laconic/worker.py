"""What an engine gives a technique: who it is, the time, ways to reach the others, and a ledger of bytes.

Protocols and plain values only, no behaviour. Techniques see the world through these, never through a `ProcessGroup`:
the real engine, the virtual engine and whatever transport comes next all look the same from here.

Two layers of conversation, both data:

- A compressor *yields requests* (`Reduce`, `Gather`, `GatherRagged`, `Scatter`, `Broadcast`, `Merge`, `RingPass`): what
  should happen to a tensor, not how. Several dependent rounds are several yields.
- An architecture *carries a request* by yielding `Handle`s of group operations; an engine waits for them, never inside
  an autograd hook.

Beside groups there are *letters*: anybody may write to a `Actor` (a parameter server's shard, a neighbour's mailbox)
that somebody hosts, and wait for its answer, without anybody else taking part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from laconic.errors import ContractError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer


class Kind(StrEnum):
    """Why bytes travel: what a compressor promised, or what the library needs to agree."""

    PAYLOAD = "payload"
    CONTROL = "control"


# ---------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Priority:
    """Of what waits to be handed to the network: the smallest urgency first, and beside the one that is on its way no
    more than so many bytes, so that what is more urgent overtakes the rest."""

    urgency: int
    credit_bytes: int


@dataclass(frozen=True, eq=False)
class Reduce:
    """Combine equal-shaped tensors elementwise; everybody gets the result. The input may be overwritten.

    `control` is the share of its bytes that is not anybody's payload, for the ledger. In `halves` it is a
    reduce-scatter and, when somebody next asks, an all-gather, where no server does it. `piece` numbers what a schedule
    has cut: at a server, each goes whole to one shard.
    """

    tensor: Tensor
    op: Literal["sum", "mean", "max"] = "mean"
    control: float = 0.0
    halves: bool = False
    priority: Priority | None = None
    piece: int | None = None


@dataclass(frozen=True, eq=False)
class Gather:
    """Everybody gets everybody's tensor, stacked along a new first dimension in rank order."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class GatherRagged:
    """As `Gather` for vectors whose lengths differ per worker (and may be zero): a list in rank order.

    Where several travel as one, `parts` says how long each is, and every member of the list is a list of parts.
    """

    tensor: Tensor
    parts: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Scatter:
    """Row j goes to worker j: everybody gets a row from everybody, stacked in rank order."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Send the tensor of the worker `source` to all workers; the other workers' tensors give shape and type."""

    tensor: Tensor
    source: int


@dataclass(frozen=True, eq=False)
class Merge:
    """Combine two at a time up a tree, neighbours first; everybody gets what is left at its root. All are alike."""

    tensor: Tensor
    combine: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class RingPass:
    """Send the tensor to the next rank of the ring and receive one of equal shape and type from the previous rank."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Swap:
    """Give this to the one at the other end of an edge, and get what it gives, which is alike."""

    tensor: Tensor


Request = Reduce | Gather | GatherRagged | Scatter | Broadcast | Merge | RingPass | Swap
Meets = Literal["reduce", "gather", "scatter", "broadcast", "merge", "ring", "edge"]
"""How payloads meet, for their price on the wire."""


class Meet(Protocol):
    """How one tensor's payloads meet: the requests a compressor may yield, and what it may know of the others."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def step(self) -> int: ...

    def mean(self, tensor: Tensor) -> Reduce: ...
    def sum(self, tensor: Tensor) -> Reduce: ...
    def max(self, tensor: Tensor) -> Reduce: ...
    def gather(self, tensor: Tensor) -> Gather: ...
    def gather_ragged(self, tensor: Tensor) -> GatherRagged: ...
    def scatter(self, tensor: Tensor) -> Scatter: ...
    def broadcast(self, tensor: Tensor, source: int) -> Broadcast: ...
    def merge(self, tensor: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Merge: ...
    def ring_pass(self, tensor: Tensor) -> RingPass: ...

    @property
    def rate(self) -> float:
        """The learning rate of this step, for what counts in changes of parameters."""
        ...

    @property
    def settings(self) -> Mapping[str, float]:
        """What this compressor has taken over from the user's optimizer (see `Compressor.takes`)."""
        ...

    def logged(self, metric: str) -> float | None:
        """What this worker last logged under a name; None where nobody has, or nobody listens."""
        ...

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """Inputs u and output gradients v of the linear layer whose gradient this is, a row for each sample, so that it
        is vᵀu; for those who take factors, and None on all workers where they are not known. They are given once."""
        ...

    def key(self, what: str = "", *, shared: bool = False) -> int:
        """For draws of `laconic.kernels`: depends on (seed, step, tensor, what) alone, and on the rank too unless it
        is shared."""
        ...


class Edge(Meet, Protocol):
    """The meeting of two neighbours: `rank` is this worker's, `other` the neighbour's; shared keys are the edge's."""

    @property
    def other(self) -> int: ...
    def swap(self, tensor: Tensor) -> Swap: ...


# ---------------------------------------------------------------------------------------------- letters

Field = int | float | str | bool | None | list[int] | list[float] | list[str]


@dataclass(frozen=True, eq=False)
class ActorMessage:
    """What a worker says to a server, or a server answers: a kind, small typed fields, tensors as they travel.

    Tensors are what a compressor promised; what is beside them is control.
    """

    kind: str
    fields: Mapping[str, Field] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def number(self, name: str, default: int | None = None) -> int:
        """A field that is a whole number."""
        return whole(self.fields, name, default)


def whole(fields: Mapping[str, Field], name: str, default: int | None = None) -> int:
    """A field that is a whole number; a letter that does not say it is refused."""
    value = fields.get(name, default)
    if not isinstance(value, int):
        raise ContractError(f"the field {name!r} is a whole number, not {value!r}")
    return value


class Actor(Protocol):
    """What answers letters, wherever it runs: it reacts, and neither waits nor looks at a clock.

    A *write* is received exactly once, in its sender's order, and answered at once. A *read* changes nothing and is
    asked again after every write until it has an answer: that is how workers wait.
    """

    outgoing: list[tuple[str, ActorMessage]]
    """What it wants to say to machines at other addresses; whoever runs it sends it after each letter received."""

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        """Take it in; or None, having changed nothing, where another write must come first."""
        ...

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None: ...
    def lose(self, sender: int) -> None:
        """This worker is gone, as far as anybody knows; it may come back under the same number."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything, as nested dicts and lists of numbers, text and tensors; `restore` takes it back."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Home:
    """Where a machine lives: on the n-th server, which is the n-th worker where there are no servers; or on a worker
    whatever there is."""

    number: int
    on: Literal["server", "worker"] = "server"


# ---------------------------------------------------------------------------------------------- transport


class Handle(Protocol):
    """Something under way."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> Any:
        """The result; raises `WorkerLost` when a peer is gone. Never called inside an autograd hook."""
        ...


class Group(Protocol):
    """An ordered set of workers that talk. Every member calls the same collectives in the same order.

    `control` is the share of the bytes that the library needs to agree, rather than what a compressor promised.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"] = "sum", control: float = 0.0) -> Handle:
        """In place, in the transport's own order of sums."""
        ...

    def all_gather(self, tensor: Tensor, control: float = 0.0) -> Handle: ...
    def all_to_all(
        self,
        tensor: Tensor,
        send_lengths: Sequence[int] | None = None,
        receive_lengths: Sequence[int] | None = None,
        control: float = 0.0,
    ) -> Handle:
        """Block j of a flat tensor goes to member j; equal blocks unless lengths (in elements) are given."""
        ...

    def reduce_scatter(self, tensor: Tensor, control: float = 0.0) -> Handle: ...
    def broadcast(self, tensor: Tensor, root: int = 0, control: float = 0.0) -> Handle: ...
    def send(self, tensor: Tensor, to: int, tag: int = 0, control: float = 0.0) -> Handle: ...
    def receive(self, tensor: Tensor, source: int, tag: int = 0, control: float = 0.0) -> Handle: ...
    def barrier(self) -> Handle: ...


class Ledger(Protocol):
    """Every byte this worker put on or took off the wire, by kind and operation."""

    def record(self, operation: str, sent_bytes: float, received_bytes: float, control: float = 0.0) -> None: ...
    def sent_bytes(self, kind: Kind | None = None) -> float: ...
    def received_bytes(self, kind: Kind | None = None) -> float: ...


class Worker(Protocol):
    """One participant, as an engine presents it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def world(self) -> Group: ...
    @property
    def ledger(self) -> Ledger: ...

    @property
    def host_size(self) -> int:
        """How many workers share this worker's machine."""
        ...

    @property
    def waited_seconds(self) -> float:
        """For how long this worker has been blocked in its handles' `wait` so far: communication that nothing hid."""
        ...

    def clock_seconds(self) -> float: ...
    def group(self, ranks: Sequence[int]) -> Group: ...

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        """See to it that a machine answers at this address; every worker says so, whoever it lives with builds it."""
        ...

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> Handle:
        """Say something to a machine; the handle's result is the letter that answers. What has a priority waits for its
        turn among its like before it is said."""
        ...

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> Tensor:
        """Zeros that all members of a group read and write: workers of one machine, who all ask, in the same order."""
        ...

    def catch_up(self) -> None:
        """Let everything happen that comes before this worker's time. Real time does that by itself."""
        ...

    def computed(
        self, part: Literal["forward", "backward", "step"], share: float = 1.0, name: str | None = None
    ) -> None:
        """The worker's own computation has come this far: a share of a part, for backward up to a named gradient."""
        ...

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        """These words work on tensors of so many elements now: time that a virtual clock must be told."""
        ...

    def stepper(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]
    ) -> Callable[[], None] | None:
        """Another way to step, where workers of one process can share it while `equal()` holds; None: its own way."""
        ...

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        """Called from inside a backward pass: run `finish` when that pass is over, where waiting is allowed."""
        ...
