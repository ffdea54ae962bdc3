"""Out-of-order backpropagation: the first layers' weight gradients last, the very first of them first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.cost.comm_plan import in_order_of_urgency, predicted_seconds
from laconic.registry import knob, technique
from laconic.schedule.base import Schedule
from laconic.schedule.bytescheduler import ByteScheduler
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique("ooo_backprop_dp", aliases=["ooo"], paper="Oh et al., EuroSys 2022", claims=[CoversOnce()])
@dataclass(frozen=True)
class OutOfOrder(Schedule):
    """Gradients of inputs first; then the weights of the first tensors in the order 0, 1, 2, …, so that what the next
    forward pass needs first leaves first, beside the transfer of the large last layers.

    On top of `bytescheduler`. Inputs of postponed layers are kept until then. Reading chosen: without a number, the
    fastest by measured times; until there are any, none. Only linear and convolution layers are postponed.
    """

    first: int | None = knob(None, low=0, doc="so many first tensors wait; none: as many as pay")
    partition: int = knob(1_000_000, low=1, doc="elements of a piece at most")
    credit: int = knob(4_000_000, low=0, doc="elements handed over and not yet acknowledged")
    late: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    prefers: ClassVar[Mapping[str, str]] = {"architecture": "parameter_server"}

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        if self.first is not None or timing is None:
            return self._postponing(self.first or 0, tensors, arrival, timing)
        counts = {0, *(len(tensors) * k // 8 for k in range(1, 9)), *(2**k for k in range(8) if 2**k <= len(tensors))}
        plans = [self._postponing(k, tensors, arrival, timing) for k in sorted(counts)]
        return min(plans, key=lambda plan: predicted_seconds(plan, arrival, timing))

    def _postponing(
        self, first: int, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None
    ) -> CommPlan:
        plan = ByteScheduler(self.partition, self.credit).plan(tensors, arrival)
        plan = replace(plan, postponed=tuple(reversed(arrival))[:first])
        return plan if timing is None or timing.duplex else in_order_of_urgency(plan, arrival, timing)
