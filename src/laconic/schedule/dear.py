"""DeAR: an all-reduce in two halves, during backward and during the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.registry import knob, technique
from laconic.schedule.base import Schedule
from laconic.schedule.wfbp import WFBP
from laconic.values.comm_plan import CommPlan, whole
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique(
    "dear",
    paper="Zhang et al., ICDCS 2023 (arXiv 2302.12445)",
    claims=[CoversOnce()],
    worth_trying=["dear", "dear(5MiB)", "dear(1MiB)"],
)
@dataclass(frozen=True)
class DeAR(Schedule):
    """Reduce-scatter gradients during backward, and all-gather them during the next forward pass.

    Both follow the order of layers, so that workers need not negotiate, and together send as much as an all-reduce.
    Where workers do not divide a message, up to N - 1 zeros are sent behind it, which the ledger counts as control
    bytes. A layer waits for its own all-gather and is updated then. Tensors are merged up to a size; the paper
    tunes it by Bayesian optimisation, here `auto` searches with measured times instead.
    """

    bucket_bytes: int = knob(25 * 2**20, low=0, doc="a message closes when it holds at least this many bytes")
    late: ClassVar[bool] = True

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        buckets = WFBP(self.bucket_bytes, first_bytes=self.bucket_bytes).buckets(tensors, arrival)
        return CommPlan(tuple(tensors), buckets, whole(buckets, tensors, arrival), gated=True, halves=True)
