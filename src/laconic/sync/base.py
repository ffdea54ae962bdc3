"""The synchronisation rule's contract: when a worker talks, about what, and when it waits."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Protocol

from torch import Tensor

from laconic.registry import Technique
from laconic.worker import Group, Handle

State = dict[str, Tensor]


class Section(Protocol):
    """The parameters a rule governs, and the words that carry what it says."""

    @property
    def parameters(self) -> list[Tensor]: ...
    @property
    def group(self) -> Group: ...
    @property
    def step(self) -> int:
        """How many optimizer steps this worker has made."""
        ...

    def average(self, tensors: list[Tensor], exact: bool = False) -> Generator[list[Handle], Any, list[Tensor]]:
        """Mean over the group of one tensor per parameter, through the sentence's architecture and (unless it must be
        exact) compression."""
        ...


class Sync(Technique):
    """When workers talk.

    Two moments are offered. *During backward*, gradients can be averaged before the optimizer sees them; *after the
    optimizer's step*, anything can be exchanged by a generator that waits by yielding.
    """

    axis: ClassVar[str] = "sync"
    late: ClassVar[bool] = False
    """True when `p.grad` after backward is not yet the average: such rules refuse `GradScaler`, and clipping goes
    through `laconic.clip_grad_norm_`."""
    has_memory: ClassVar[bool] = False
    replicas_differ: ClassVar[bool] = False
    """True when workers hold different parameters between exchanges, so that a checkpoint must keep all of them."""

    def init(self, section: Section) -> State:
        return {}

    def averages_gradients(self, step: int) -> bool:
        """Whether this step's gradients are averaged during backward. The same on every member of the group."""
        return False

    def after_step(self, section: Section, state: State) -> Generator[list[Handle], Any, State]:
        """What happens when the optimizer has stepped."""
        return state
        yield

    def leave(self, section: Section, state: State) -> Generator[list[Handle], Any, None]:
        """The phase ends, and another rule takes over: workers that have drifted apart meet in the mean.

        Their optimizers' own state stays as it is on each.
        """
        if self.replicas_differ:
            means = yield from section.average([p.detach().clone() for p in section.parameters], exact=True)
            for parameter, mean in zip(section.parameters, means, strict=True):
                parameter.data.copy_(mean)
