"""The contract of a schedule: it turns tensors, in the order in which they become ready, into a plan of messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from laconic.registry import Technique
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


class Schedule(Technique):
    """A schedule: it decides which tensors share a message, and in what order messages are sent."""

    axis: ClassVar[str] = "schedule"
    late: ClassVar[bool] = False
    """True when messages may still be in flight after backward."""
    measures: ClassVar[bool] = False
    """Whether it plans again once the first iterations and the network were timed."""
    decides: ClassVar[bool] = False
    """Whether it chooses among the plans of several systems, so that its choice is reported."""

    @property
    def finishes_late(self) -> bool:
        """Whether, with these settings, messages may still be in flight after backward."""
        return self.late

    def for_compressed(self) -> Schedule:
        """Return the schedule as it is where gradients are compressed: one that has no size of messages of its own may
        take another."""
        return self

    @abstractmethod
    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        """Return the plan of an iteration's messages.

        `arrival` lists tensor indices in the order in which backward computes their gradients; `timing` holds the
        measured times of the iteration and the network, where they are known.
        """
