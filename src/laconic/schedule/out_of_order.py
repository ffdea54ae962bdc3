"""Out-of-order backpropagation: weight gradients of the first layers are computed last, the first layer's first."""

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
    """Defer the first layers' weight gradients to the end of backward, and compute them in the order of layers.

    So what the next forward pass needs first is sent first, while the large last layers are transferred. It extends
    `bytescheduler`. Inputs of deferred layers are kept until then. Reading chosen: without a number, the power of two
    or the eighths of all tensors that are fastest by measured times, and none until times were measured. Only linear
    and convolution layers are deferred.
    """

    first: int | None = knob(None, low=0, doc="number of first tensors that are deferred; none: as many as pay")
    partition: int = knob(1_000_000, low=1, doc="largest number of elements in a piece")
    credit: int = knob(4_000_000, low=0, doc="elements handed over and not yet acknowledged")
    late: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    prefers: ClassVar[Mapping[str, str]] = {"architecture": "parameter_server"}

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        if self.first is not None or timing is None:
            return self._deferring(self.first or 0, tensors, arrival, timing)
        counts = {0, *(len(tensors) * k // 8 for k in range(1, 9)), *(2**k for k in range(8) if 2**k <= len(tensors))}
        plans = [self._deferring(k, tensors, arrival, timing) for k in sorted(counts)]
        return min(plans, key=lambda plan: predicted_seconds(plan, arrival, timing))

    def _deferring(
        self, first: int, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None
    ) -> CommPlan:
        plan = ByteScheduler(self.partition, self.credit).plan(tensors, arrival)
        plan = replace(plan, postponed=tuple(reversed(arrival))[:first])
        return plan if timing is None or timing.duplex else in_order_of_urgency(plan, arrival, timing)
