"""The contract of a synchronisation rule: when workers communicate, what they exchange, and when they wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import TypeVar

from laconic.registry import Technique
from laconic.values.cadence import Cadence, Stretch
from laconic.worker import Communication, Group

State = dict[str, Tensor]
"""A generator that communicates: it waits by yielding handles, and what it returns is its result."""

NO_GUARANTEE = "no guarantee declared"


class SyncContext(Protocol):
    """What every rule sees of the training it governs: parameters, gradients, and means over all workers.

    What only some rules need (neighbours, a server, a clock, messages in flight) is in `laconic.sync.contexts`.
    """

    @property
    def parameters(self) -> list[Tensor]: ...
    @property
    def names(self) -> tuple[str, ...]:
        """The model's name for each of the parameters."""
        ...

    @property
    def gradients(self) -> list[Tensor]:
        """This worker's gradients, one per parameter, with zeros where backward left none."""
        ...

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers (running means and the like)."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer, for rules that reset, keep or average its state."""
        ...

    @property
    def rate(self) -> float:
        """The present learning rate of the first parameter group."""
        ...

    @property
    def group(self) -> Group: ...
    @property
    def step(self) -> int:
        """The number of the present step, from 0; in `after_step`, of the one that the optimizer has just made."""
        ...

    def note(self, **numbers: float) -> None:
        """Record numbers about this rule that people may want to see, such as a staleness or a period."""
        ...

    def apply(self) -> None:
        """Step the user's optimizer on this worker, for rules that replace the step."""
        ...

    def average(
        self, tensors: list[Tensor], exact: bool = False, only: Sequence[int] | None = None
    ) -> Communication[Any]:
        """Return the mean over the group of one tensor per parameter, through the sentence's architecture and, unless
        `exact`, its compression. With `only` the tensors belong to the parameters with these indices."""
        ...

    def average_and_sent(self, tensors: list[Tensor]) -> Communication[Any]:
        """Return the means, as `average` does, and this worker's own payloads, decoded."""
        ...

    def mean(self, tensors: list[Tensor]) -> Communication[Any]:
        """Return the exact mean over the group of any tensors, such as buffers, through the sentence's architecture."""
        ...

    @property
    def seed(self) -> int:
        """A seed that is the same on every worker, for random draws that all workers must share."""
        ...


Context = TypeVar("Context", bound=SyncContext, contravariant=True, default=SyncContext)


class Sync(Technique, Generic[Context]):
    """A synchronisation rule: it decides when workers communicate.

    A rule can act at three moments. *During backward*, gradients can be averaged before the optimizer sees them; *after
    the optimizer's step*, a generator that waits by yielding can exchange anything; a rule that `replaces_step` does
    itself what `optimizer.step()` would do, for example where a server holds the optimizer.

    A rule that needs more than a `SyncContext` says which: `class Mine(Sync[MixingContext])`.
    """

    axis: ClassVar[str] = "sync"
    talks: ClassVar[str] = "average"
    """What the rule needs of the architecture: to "average" over all, to "mix" with neighbours, a "server", or "shared"
    memory."""
    late: ClassVar[bool] = False
    """True when `p.grad` after backward is not yet the average. Such rules refuse `GradScaler`, and gradients are
    clipped by `laconic.clip_grad_norm_`."""
    has_memory: ClassVar[bool] = False
    replicas_differ: ClassVar[bool] = False
    """True when workers hold different parameters between exchanges, so that a checkpoint must keep all of them."""
    replaces_step: ClassVar[bool] = False
    races: ClassVar[bool] = False
    """True when the result depends on the order of arrival, so that two runs need not end with the same bits."""
    steers: ClassVar[bool] = False
    """True when the rule sets the batch or the learning rate, which only a rule for the whole model can."""
    skips: ClassVar[bool] = False
    """True when the rule skips some gradients in some steps, which `weights` then names."""
    copies: ClassVar[int] = 0
    """Tensors of the model's size that the rule keeps on each worker: a point to return to, a momentum of its own."""

    @property
    def cadence(self) -> Cadence | None:
        """When the rule exchanges, from which `laconic plan` prices it; None: that is not the same in all steps, or
        cannot be said beforehand."""
        return None

    def stretches(self, steps: int | None) -> Sequence[Stretch]:
        """Return which shares of a phase of so many steps the rule spends with which cadence; none where that cannot be
        said beforehand. It is for rules that change their cadence by what they are told, not by what they see.

        - `steps`: of the phase; None: unknown, and longer than any change takes.
        """
        return () if self.cadence is None else (Stretch(self.cadence),)

    @property
    def offloads(self) -> bool:
        """Whether `copies`, and the compressor's memory with them, lie in the host's memory between exchanges where the
        parameters are on a GPU."""
        return False

    @property
    def guarantee(self) -> str | None:
        """What theory guarantees of the rule, in a phrase; None: the same mathematics as synchronous SGD."""
        return f"{self.name}: {NO_GUARANTEE}"

    @property
    def reads_optimizer_state(self) -> bool:
        """Whether the rule reads or resets what the optimizer remembers of single parameters. Where a model is sharded,
        that belongs to sharded tensors, and rules work on this worker's part of them."""
        return False

    @property
    def period(self) -> int:
        """The number of steps after which what the rule sends repeats: that of its cadence, unless the rule has a knob
        of this name. A time or a number of bytes per step is a mean over whole periods."""
        return 1 if self.cadence is None else self.cadence.period

    @property
    def micro_batches(self) -> int:
        """The number of steps whose gradients are summed locally before the last backward exchanges their mean."""
        return 1

    @property
    def plain(self) -> bool:
        """Whether the rule only averages and applies the gradients of every step and exchanges nothing else."""
        more = self.late or self.replaces_step or self.replicas_differ or self.steers or self.skips
        return not more and self.micro_batches == 1 and type(self).after_step is Sync.after_step

    def init(self, context: Context) -> State:
        """Return the rule's initial state, as named tensors that checkpoints keep."""
        return {}

    def weights(self, context: Context, state: State) -> Sequence[float]:
        """Return the factor on each parameter's gradient in this step; for rules that `skips`, before the forward pass.

        A gradient with factor zero is neither computed nor sent. Every member of the group must return the same.
        """
        return [1.0] * len(context.parameters)

    def averages_gradients(self, step: int) -> bool:
        """Return whether this step's gradients are averaged during backward; every member must return the same."""
        return False

    def after_step(self, context: Context, state: State) -> Communication[State]:
        """Do what the rule does after the optimizer has stepped, and return the new state."""
        return state
        yield

    def stepping(self, context: Context, state: State) -> Communication[State]:
        """Do all that `optimizer.step()` stands for, in a rule that replaces it, and return the new state."""
        context.apply()
        return (yield from self.after_step(context, state))

    def leave(self, context: Context, state: State) -> Communication[None]:
        """End the rule's phase before another rule takes over: replicas that differ are replaced by their mean.

        The state of each worker's optimizer is left as it is.
        """
        if self.replicas_differ:
            means = yield from context.average([p.detach().clone() for p in context.parameters], exact=True)
            for parameter, mean in zip(context.parameters, means, strict=True):
                parameter.data.copy_(mean)
            yield from average_buffers(context)

    def settle(self, context: Context, state: State) -> Communication[State]:
        """Complete what is in flight and make replicas equal, for `laconic.finish`; training may go on afterwards."""
        yield from self.leave(context, state)
        return state


def average_buffers(context: SyncContext) -> Communication[Any]:
    """Average the model's buffers, such as running means, so that an averaged model can be evaluated."""
    means = yield from context.mean([buffer.detach().clone() for buffer in context.buffers])
    for buffer, mean in zip(context.buffers, means, strict=True):
        buffer.data.copy_(mean)
