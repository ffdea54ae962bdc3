"""The synchronisation rule's contract: when a worker talks, about what, and when it waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor
from torch.optim import Optimizer

from laconic.registry import Technique
from laconic.topology.mixing import Matrix, Mixing
from laconic.worker import Actor, ActorMessage, Group, Handle

if TYPE_CHECKING:
    from laconic.architecture.server.client import ServerClient

State = dict[str, Tensor]
Talk = Generator[list[Handle], Any, Any]
"""Waits by yielding handles; what it returns is its result."""


class SyncContext(Protocol):
    """The parameters a rule governs, and the words that carry what it says."""

    @property
    def parameters(self) -> list[Tensor]: ...
    @property
    def names(self) -> list[str]:
        """What the model calls each of them."""
        ...

    @property
    def gradients(self) -> list[Tensor]:
        """This worker's gradients, one per parameter; zeros where backward left none."""
        ...

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers (running means and the like)."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """The user's own, for rules that reset, keep or average what it remembers."""
        ...

    @property
    def rate(self) -> float:
        """The learning rate now, of the first parameter group."""
        ...

    @property
    def group(self) -> Group: ...
    @property
    def step(self) -> int:
        """How many optimizer steps this worker has made."""
        ...

    @property
    def seconds(self) -> float:
        """The time by this worker's clock."""
        ...

    @property
    def waited_seconds(self) -> float:
        """How much of that time this worker has spent waiting for others and the network."""
        ...

    def logged(self, metric: str) -> float | None:
        """What this worker's script last gave to `laconic.log` under this name; None: nothing yet."""
        ...

    def steer(self, batch: int | None, rate: float) -> None:
        """From now on: samples per worker that `laconic.batch_size` answers (None: the script's own number), and the
        factor by which steps multiply the learning rate. For rules that `steers`."""
        ...

    @property
    def server(self) -> ServerClient:
        """The parameter server, where the architecture has one."""
        ...

    def note(self, **numbers: float) -> None:
        """Say something of oneself that people may want to see: a staleness, a period."""
        ...

    def apply(self) -> None:
        """Let the user's optimizer step on this worker, for rules that replace the step."""
        ...

    def average(self, tensors: list[Tensor], exact: bool = False, only: Sequence[int] | None = None) -> Talk:
        """Mean over the group of one tensor per parameter (`only`: of these, by index), through the sentence's
        architecture and (unless it must be exact) compression."""
        ...

    def average_and_own(self, tensors: list[Tensor]) -> Talk:
        """As `average`: means, and for each what this worker itself said, decoded."""
        ...

    def mean(self, tensors: list[Tensor]) -> Talk:
        """Exact mean over the group of any tensors, such as buffers, through the sentence's architecture."""
        ...

    @property
    def seed(self) -> int:
        """The same on every worker, for what all must draw alike."""
        ...

    def mixing(self, extra: int = 0) -> Mixing:
        """The topology's weights among the group's members, and so many more that are no workers."""
        ...

    def mix(self, tensors: list[Tensor], matrix: Matrix) -> Talk:
        """The sum over neighbours j of matrix[i, j] times what j gives here. A cast rounds what is said, never what
        stays at home, and keeps the mean of all."""
        ...

    def hear(self, tensors: list[Tensor], matrix: Matrix) -> Talk:
        """As `mix`, without this worker's own share."""
        ...

    def said(self, tensors: list[Tensor]) -> list[Tensor]:
        """These tensors as neighbours would get them."""
        ...

    def written(self, tensors: list[Tensor]) -> list[Tensor]:
        """One tensor per parameter as this worker alone says it: the bytes of each, in the sentence's compression."""
        ...

    def read(self, payloads: Sequence[Tensor]) -> list[Tensor]:
        """What such bytes say, whoever wrote them."""
        ...

    def swap(
        self, told: Mapping[int, Sequence[Tensor]], heard: Mapping[int, Sequence[Tensor]], control: float = 0.0
    ) -> Talk:
        """Give tensors to single members and get, from single members, tensors like those in `heard`."""
        ...

    def host(self, name: str, member: int, build: Callable[[], Actor]) -> None:
        """See to it that a machine of this name lives with a member; all members say so."""
        ...

    def call(self, name: str, message: ActorMessage, writes: bool) -> Handle:
        """Say something to a machine that a member hosts; the handle brings its answer."""
        ...

    def catch_up(self) -> None:
        """Let everything happen that comes before this worker's time, as whoever looks into a shared memory must."""
        ...

    def start(self, name: str, talk: Talk) -> None:
        """Begin a talk without waiting; `arrive` ends it, in a later step perhaps."""
        ...

    def is_in_flight(self, name: str) -> bool:
        """Whether a talk of this name was started and has not been asked for."""
        ...

    def has_arrived(self, name: str) -> bool:
        """Whether to wait for it would take no time, as far as its first answer goes."""
        ...

    def arrive(self, name: str) -> Talk:
        """Wait for what was started under this name, and return its result."""
        ...


class Sync(Technique):
    """When workers talk.

    Three moments are offered. *During backward*, gradients can be averaged before the optimizer sees them; *after the
    optimizer's step*, anything can be exchanged by a generator that waits by yielding; a rule that `replaces_step`
    does what `optimizer.step()` does itself, as where a server holds the optimizer.
    """

    axis: ClassVar[str] = "sync"
    talks: ClassVar[str] = "average"
    """What it asks of the architecture: "average" over everyone, "mix" with neighbours, a "server", "shared" memory."""
    late: ClassVar[bool] = False
    """True when `p.grad` after backward is not yet the average: such rules refuse `GradScaler`, and clipping goes
    through `laconic.clip_grad_norm_`."""
    has_memory: ClassVar[bool] = False
    replicas_differ: ClassVar[bool] = False
    """True when workers hold different parameters between exchanges, so that a checkpoint must keep all of them."""
    replaces_step: ClassVar[bool] = False
    races: ClassVar[bool] = False
    """True when the result depends on who comes first, so that two runs of it need not end with the same bits."""
    steers: ClassVar[bool] = False
    """True when it sets the batch or the learning rate, as only a rule for the whole model can."""
    skips: ClassVar[bool] = False
    """True when it does without some gradients in some steps: then `weights` says which."""

    @property
    def micro_batches(self) -> int:
        """How many steps' gradients add up before they are exchanged, as their mean, in the last one's backward."""
        return 1

    @property
    def plain(self) -> bool:
        """Whether every step's gradients are averaged and applied, and nothing more is said."""
        more = self.late or self.replaces_step or self.replicas_differ or self.steers or self.skips
        return not more and self.micro_batches == 1 and type(self).after_step is Sync.after_step

    def init(self, context: SyncContext) -> State:
        return {}

    def weights(self, context: SyncContext, state: State) -> Sequence[float]:
        """Before the forward pass of each step, where the rule `skips`: how much each parameter's gradient counts in
        it. Zero: it is neither computed nor sent. The same on every member of the group."""
        return [1.0] * len(context.parameters)

    def averages_gradients(self, step: int) -> bool:
        """Whether this step's gradients are averaged during backward. The same on every member of the group."""
        return False

    def after_step(self, context: SyncContext, state: State) -> Generator[list[Handle], Any, State]:
        """What happens when the optimizer has stepped."""
        return state
        yield

    def stepping(self, context: SyncContext, state: State) -> Generator[list[Handle], Any, State]:
        """The whole of `optimizer.step()`, for a rule that replaces it."""
        context.apply()
        return (yield from self.after_step(context, state))

    def leave(self, context: SyncContext, state: State) -> Generator[list[Handle], Any, None]:
        """The phase ends, and another rule takes over: workers that have drifted apart meet in the mean.

        Their optimizers' own state stays as it is on each.
        """
        if self.replicas_differ:
            means = yield from context.average([p.detach().clone() for p in context.parameters], exact=True)
            for parameter, mean in zip(context.parameters, means, strict=True):
                parameter.data.copy_(mean)
            yield from average_buffers(context)

    def settle(self, context: SyncContext, state: State) -> Generator[list[Handle], Any, State]:
        """`laconic.finish` was called: what is under way arrives, and workers meet; training may go on from there."""
        yield from self.leave(context, state)
        return state


def average_buffers(context: SyncContext) -> Talk:
    """Running means and the like follow the parameters, so that an averaged model can be evaluated."""
    means = yield from context.mean([buffer.detach().clone() for buffer in context.buffers])
    for buffer, mean in zip(context.buffers, means, strict=True):
        buffer.data.copy_(mean)
