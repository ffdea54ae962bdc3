"""Schedules that split tensors into pieces and send first what the next forward pass needs first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.cost.comm_plan import in_order_of_urgency
from laconic.registry import knob, named_sentence, technique
from laconic.schedule.base import Schedule
from laconic.values.comm_plan import CommPlan, in_pieces
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique("bytescheduler", paper="Peng et al., SOSP 2019", claims=[CoversOnce()], worth_trying=["bytescheduler"])
@dataclass(frozen=True)
class ByteScheduler(Schedule):
    """Send tensors in pieces, the first layers' first; each layer of the next forward pass waits only for its own.

    No more than the credit is handed to the network at a time, so that an urgent piece waits for no more than that. At
    a server every worker has its own priority queue. All-reduces need the same order on all workers: the order in which
    such a queue would serve them by rank 0's timing of the first iterations.
    """

    partition: int = knob(1_000_000, low=1, doc="largest number of elements in a piece")
    credit: int = knob(4_000_000, low=0, doc="elements handed over and not yet acknowledged")
    late: ClassVar[bool] = True
    measures: ClassVar[bool] = True

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        buckets = tuple((i,) for i in arrival)
        messages = in_pieces(buckets, tensors, arrival, self.partition)
        widest = max((spec.dtype.itemsize for spec in tensors), default=4)
        plan = CommPlan(tuple(tensors), buckets, messages, credit_bytes=self.credit * widest, gated=True)
        return plan if timing is None or timing.duplex else in_order_of_urgency(plan, arrival, timing)


named_sentence(
    "bytescheduler_ps",
    "bsp / none / ps / bytescheduler",
    axis="schedule",
    paper="Peng et al., SOSP 2019",
    doc="Pieces by priority to parameter servers, four in flight; pulls overlap with the next forward pass.",
)

named_sentence(
    "bytescheduler_a2a",
    "bsp / none / allreduce / bytescheduler(8000000, credit=16000000)",
    axis="schedule",
    paper="Peng et al., SOSP 2019",
    doc="Pieces by priority, each in its own all-reduce; they are larger, since each one costs a start-up.",
)


@technique("p3", paper="Jayarajan et al., MLSys 2019", claims=[CoversOnce()])
@dataclass(frozen=True)
class P3(Schedule):
    """Send thin slices to parameter servers in turn, one at a time and the most urgent first.

    A server answers with the averaged slice as soon as all workers have sent theirs. Reading chosen: 50,000 parameters,
    as in the paper's text. The servers of this library answer in the order of arrival.
    """

    slice: int = knob(50_000, low=1, doc="largest number of elements in a slice")
    late: ClassVar[bool] = True
    prefers: ClassVar[Mapping[str, str]] = {"architecture": "parameter_server"}

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        plan = ByteScheduler(self.slice, credit=0).plan(tensors, arrival)
        return replace(plan, credit_bytes=0)
