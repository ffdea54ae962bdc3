"""The schedule's contract: from tensors in the order they become ready to a plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from laconic.registry import Technique
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


class Schedule(Technique):
    """In what order messages leave."""

    axis: ClassVar[str] = "schedule"
    late: ClassVar[bool] = False
    """True when messages may still be under way after backward."""
    measures: ClassVar[bool] = False
    """Whether it plans anew when the first iterations were timed, and what the network takes."""
    decides: ClassVar[bool] = False
    """Whether it chooses among others' plans, so that people want to know what it chose."""

    @property
    def finishes_late(self) -> bool:
        """Whether this one's may."""
        return self.late

    @abstractmethod
    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        """`arrival` lists tensor indices in the order in which backward makes their gradients; `timing` is what the
        iteration takes, where that is known."""
