"""The schedule's contract: from tensors in the order they become ready to a plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from laconic.compression.base import TensorSpec
from laconic.registry import Technique
from laconic.schedule.plan import CommPlan


class Schedule(Technique):
    """In what order messages leave."""

    axis: ClassVar[str] = "schedule"
    late: ClassVar[bool] = False
    """True when messages may still be under way after backward."""

    @abstractmethod
    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int]) -> CommPlan:
        """`arrival` lists tensor indices in the order in which backward makes their gradients."""
