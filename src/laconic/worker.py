"""What an engine gives a technique: its identity, the time, ways to reach other workers, and a ledger of bytes.

This module holds protocols and plain values only, no behaviour. Techniques see the world through these, never through a
`ProcessGroup`: the real engine, the virtual engine and any later transport look the same from here.

Communication has two layers, both of them data:

- A compressor *yields requests* (`Reduce`, `ReduceScatter`, `Gather`, `GatherRagged`, `Scatter`, `ScatterRagged`,
  `Broadcast`, `Merge`, `CodedSum`): what should happen to a tensor, not how. Several dependent rounds are several
  yields.
- An architecture *carries a request out* by yielding `Handle`s of group operations; an engine waits for them, never
  inside an autograd hook.

Beside group operations there are *actor messages*: any worker may send one to an `Actor` that some process hosts (a
parameter server's shard, a neighbour's mailbox) and wait for its answer, without any other worker taking part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from laconic.errors import ContractError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer


class Kind(StrEnum):
    """The reason for which bytes are sent: a compressor's payload, or control data with which the library makes workers
    agree."""

    PAYLOAD = "payload"
    CONTROL = "control"


# ---------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Priority:
    """The place of a message among those that wait for the network. The message of smallest `urgency` is sent first;
    beside the one in flight no more than `credit_bytes` are handed over, so that a more urgent message can overtake the
    rest."""

    urgency: int
    credit_bytes: int


@dataclass(frozen=True, eq=False)
class Reduce:
    """Combine equal-shaped tensors elementwise and give every worker the result. The input may be overwritten.

    `control` is the share of the tensor's bytes that is not a compressor's payload, for the ledger. With `halves`, and
    where no server combines the tensors, the operation is a reduce-scatter now and an all-gather when its result is
    next asked for. `piece` numbers the pieces into which a schedule has cut a bucket: a parameter server sends each
    piece whole to one shard.
    """

    tensor: Tensor
    op: Literal["sum", "mean", "max"] = "mean"
    control: float = 0.0
    halves: bool = False
    priority: Priority | None = None
    piece: int | None = None


@dataclass(frozen=True, eq=False)
class ReduceScatter:
    """Add equal flat tensors elementwise and give worker j the j-th of as many equal shards as there are workers, into
    which the length must divide. `Gather` of the shards is the way back. The input may be overwritten."""

    tensor: Tensor
    control: float = 0.0


@dataclass(frozen=True, eq=False)
class Gather:
    """Give every worker every worker's tensor, stacked along a new first dimension in rank order; a transport may write
    them into `out`. The answer is not written to: workers of one process share it."""

    tensor: Tensor
    control: float = 0.0
    out: Tensor | None = None


@dataclass(frozen=True, eq=False)
class GatherRagged:
    """Gather vectors whose lengths differ between workers (and may be zero), as a list in rank order.

    Where several vectors are sent as one, `parts` holds the length of each, and every entry of the list is a list of
    parts.
    """

    tensor: Tensor
    parts: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Scatter:
    """Send row j to worker j: every worker gets one row from every worker, stacked in rank order; a transport may write
    them into `out`."""

    tensor: Tensor
    out: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ScatterRagged:
    """Send vectors of different lengths (which may be zero) to all workers: the tensor holds worker 0's first, and so
    on. Every worker gets a list of what each worker sent to it, in rank order.

    `lengths` holds a row for each worker. Where several vectors are sent to each as one, a row holds the length of each
    part, and every entry of the list is a list of parts.
    """

    tensor: Tensor
    lengths: tuple[tuple[int, ...], ...]
    parts: bool = False


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Give every worker the tensor of the worker `source`; the other workers' tensors only provide shape and type."""

    tensor: Tensor
    source: int


@dataclass(frozen=True, eq=False)
class Merge:
    """Combine equal-shaped tensors pairwise up a binary tree, neighbours first, and give every worker the root's
    result."""

    tensor: Tensor
    combine: Callable[[Tensor, Tensor], Tensor]


class HopCode(Protocol):
    """How parts of a float32 vector are written in messages that are decoded and added to on their way."""

    @property
    def unit(self) -> int:
        """The number of elements of the smallest part that can be encoded separately from the rest."""
        ...

    def nbytes(self, numel: int) -> int:
        """Return the bytes of the message of a part of so many elements."""
        ...

    def encode(self, part: Tensor, step: int | None) -> Tensor:
        """Return the message (uint8) of a part that is to be added in this step of a program, or of one that is
        complete (None): all workers write equal messages of equal parts."""
        ...

    def decode(self, message: Tensor, numel: int) -> Tensor:
        """Return the part of so many elements that a message encodes."""
        ...


@dataclass(frozen=True)
class Coding:
    """How a flat vector is encoded: it consists of vectors of these lengths, each with a code of its own."""

    codes: tuple[HopCode, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CodedSum:
    """Add flat float32 tensors elementwise, in messages that are encoded: whoever receives one decodes it, adds its own
    part and encodes the sum for the next. Every worker gets the same sum. The input is overwritten."""

    tensor: Tensor
    coding: Coding


@dataclass(frozen=True, eq=False)
class Swap:
    """Send the tensor to the worker at the other end of an edge and receive its tensor, which has the same shape."""

    tensor: Tensor


Request = Reduce | ReduceScatter | Gather | GatherRagged | Scatter | ScatterRagged | Broadcast | Merge | CodedSum | Swap
Meets = Literal["reduce", "gather", "scatter", "broadcast", "merge", "edge"]
"""The operations by which payloads meet; each has its own price on the wire."""


class Meet(Protocol):
    """How the payloads of one tensor meet: the requests a compressor may yield, and what it may know about the other
    workers."""

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
    def scatter_ragged(self, rows: Sequence[Tensor]) -> ScatterRagged: ...
    def broadcast(self, tensor: Tensor, source: int) -> Broadcast: ...
    def merge(self, tensor: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Merge: ...
    def coded_sum(self, tensor: Tensor, code: HopCode) -> CodedSum: ...

    @property
    def rate(self) -> float:
        """The learning rate of this step, for compressors whose units are changes of parameters."""
        ...

    @property
    def settings(self) -> Mapping[str, float]:
        """The settings this compressor has taken over from the user's optimizer (see `TakesSettings`)."""
        ...

    def logged(self, metric: str) -> float | None:
        """Return the value this worker last logged under this name, or None where it was never logged or is not
        recorded."""
        ...

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """Return the inputs u and output gradients v of the linear layer whose gradient this is, one row per sample, so
        that the gradient is vᵀu. The answer is for compressors that declare to take factors; it is None on all workers
        where the factors are not known. They are given out once."""
        ...

    def key(self, what: str = "", *, shared: bool = False) -> int:
        """Return the key of a random draw of `laconic.kernels`: it depends on (seed, step, tensor, what) alone, and on
        the rank too unless it is shared."""
        ...


class Edge(Meet, Protocol):
    """The meeting of two neighbours: `rank` is this worker, `other` the neighbour; shared keys belong to the edge."""

    @property
    def other(self) -> int: ...
    def swap(self, tensor: Tensor) -> Swap: ...


# ---------------------------------------------------------------------------------------------- actor messages

Field = int | float | str | bool | None | list[int] | list[float] | list[str]


@dataclass(frozen=True, eq=False)
class ActorMessage:
    """What a worker sends to an actor, or an actor answers: a kind, small typed fields, and tensors as they are sent.

    The bytes of the tensors are a compressor's payload; everything beside them is control.
    """

    kind: str
    fields: Mapping[str, Field] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field that is an integer; refuse a message that lacks it."""
        return whole(self.fields, name, default)


def whole(fields: Mapping[str, Field], name: str, default: int | None = None) -> int:
    """Return a field that is an integer; refuse a message that lacks it."""
    value = fields.get(name, default)
    if not isinstance(value, int):
        raise ContractError(f"the field {name!r} is a whole number, not {value!r}")
    return value


class Actor(Protocol):
    """A state machine that answers messages, wherever it runs: it reacts, and neither waits nor reads a clock.

    A *write* is received exactly once, in its sender's order, and answered at once. A *read* changes nothing and is
    retried after every write until it has an answer: that is how workers wait.
    """

    outgoing: list[tuple[str, ActorMessage]]
    """Messages to actors at other addresses; the host of this actor sends them after each message received."""

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        """Apply the message and answer it; return None, having changed nothing, where another write must come first."""
        ...

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        """Answer the message without changing anything; return None where it cannot be answered yet."""
        ...

    def lose(self, sender: int) -> None:
        """Note that this worker is presumed lost; it may come back under the same number."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the complete state as nested dicts and lists of numbers, text and tensors; `restore` reads it back."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Home:
    """The process that hosts an actor: the server process `number`, or the worker of that number where there are no
    server processes; with `on="worker"` always the worker."""

    number: int
    on: Literal["server", "worker"] = "server"


# ---------------------------------------------------------------------------------------------- transport


class Handle(Protocol):
    """An operation in flight."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> Any:
        """Return the result; raise `WorkerLost` when a peer is gone. This is never called inside an autograd hook."""
        ...


Awaited = Handle | list[Handle]
Result = TypeVar("Result")
Communication = Generator[Awaited, Any, Result]
"""Operations that depend on each other, as a generator: it yields what it waits for, a handle or several, and is
resumed with the result or the list of results. An engine drives it, and never waits inside an autograd hook."""


class Group(Protocol):
    """An ordered set of workers that communicate. Every member calls the same collectives in the same order.

    `control` is the share of the bytes that the library needs for agreement, rather than a compressor's payload.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...

    @property
    def host_size(self) -> int:
        """How many neighbouring members share a host; 1 where hosts have unequal numbers of members."""
        ...

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"] = "sum", control: float = 0.0) -> Handle:
        """Reduce in place, in the transport's own order of sums."""
        ...

    def all_gather(self, tensor: Tensor, control: float = 0.0, out: Tensor | None = None) -> Handle:
        """Return every member's tensor, stacked in rank order, maybe in `out`. It is not written to: members may share
        it."""
        ...

    def all_to_all(
        self,
        tensor: Tensor,
        send_lengths: Sequence[int] | None = None,
        receive_lengths: Sequence[int] | None = None,
        control: float = 0.0,
        out: Tensor | None = None,
    ) -> Handle:
        """Send block j of a flat tensor to member j; blocks are equal unless lengths (in elements) are given."""
        ...

    def reduce_scatter(self, tensor: Tensor, control: float = 0.0) -> Handle: ...
    def broadcast(self, tensor: Tensor, root: int = 0, control: float = 0.0) -> Handle: ...
    def send(self, tensor: Tensor, to: int, tag: int = 0, control: float = 0.0) -> Handle: ...
    def receive(self, tensor: Tensor, source: int, tag: int = 0, control: float = 0.0) -> Handle: ...
    def swap(
        self,
        sends: Sequence[tuple[Tensor, int]],
        receives: Sequence[tuple[Tensor, int]],
        control: float = 0.0,
    ) -> Sequence[Handle]:
        """Send tensors to members and receive others at the same time, in whatever order they arrive."""
        ...

    def barrier(self) -> Handle: ...

    def run(
        self, program: Any, flat: Tensor, control: float = 0.0, coding: Coding | None = None
    ) -> Communication[Tensor]:
        """Carry out a `collective.Program` on every member's flat tensor, in place, and return the tensor. With a
        coding, chunks are encoded in messages."""
        ...

    def measure(self, device: torch.device) -> Communication[Any]:
        """Probe the network between the members with tensors of a device, and return a `collective.Measured`."""
        ...

    def clock_seconds(self) -> float:
        """Return this member's time."""
        ...

    @property
    def remembered(self) -> dict[str, Any]:
        """What is known about this group and ends with it, by the names of those who found it out."""
        ...

    def compute_alike(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        """Let `compute` write to `into` what follows from the answer of a collective alone, so that it is the same on
        every member. Members that share memory may copy what one of them has computed."""
        ...


class Ledger(Protocol):
    """The count of all bytes this worker sent and received, by kind and operation."""

    def record(self, operation: str, sent_bytes: float, received_bytes: float, control: float = 0.0) -> None: ...
    def sent_bytes(self, kind: Kind | None = None) -> float: ...
    def received_bytes(self, kind: Kind | None = None) -> float: ...


class Worker(Protocol):
    """One participant of a run, as an engine presents it."""

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
        """How many workers share this worker's host."""
        ...

    @property
    def waited_seconds(self) -> float:
        """For how long this worker has been blocked in its handles' `wait` so far: communication that was not
        overlapped."""
        ...

    def clock_seconds(self) -> float: ...
    def group(self, ranks: Sequence[int]) -> Group: ...

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        """Ensure that an actor answers at this address. Every worker calls this; the process at `home` builds the
        actor."""
        ...

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> Handle:
        """Send a message to an actor; the handle's result is the answer. Messages with a priority are sent in the order
        of their urgency."""
        ...

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> Tensor:
        """Return zeros that all members of a group read and write. The members are workers of one host and all call
        this, in the same order."""
        ...

    def communication_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """Return the CUDA stream on which communications compute beside the training, where there is one."""
        ...

    def catch_up(self) -> None:
        """Let every event happen that precedes this worker's time. On the real engine this does nothing, since real
        time passes by itself."""
        ...

    @property
    def times_gradients(self) -> bool:
        """Whether `computed` must be called for each gradient, since a clock or a recording follows the pass; where it
        need not, hooks are shorter."""
        ...

    def computed(
        self, part: Literal["forward", "backward", "step"], share: float = 1.0, name: str | None = None
    ) -> None:
        """Report how far this worker's computation has come: a share of a part of the step, for backward up to a named
        gradient."""
        ...

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        """Report that these words of the sentence now encode or decode tensors of so many elements: a virtual clock
        must account for that time."""
        ...

    def stepper(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]
    ) -> Callable[[], None] | None:
        """Return another way to step, where workers of one process can share the optimizer's work while `equal()`
        holds; None means that each worker steps by itself."""
        ...

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        """Run `finish` when the current backward pass is over, where waiting is allowed. This is called from inside
        that pass."""
        ...
