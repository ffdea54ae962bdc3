"""Sequential schedule: communication starts when all computation is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laconic.claims import CoversOnce
from laconic.registry import named_sentence, technique
from laconic.schedule.base import Schedule
from laconic.values.comm_plan import CommPlan, of_one_dtype, whole
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique(
    "sequential",
    aliases=["no_overlap"],
    paper="Shi et al., arXiv 2005.13247 (BSP without overlap)",
    claims=[CoversOnce()],
    worth_trying=["sequential"],
)
@dataclass(frozen=True)
class Sequential(Schedule):
    """Send all gradients in one message per dtype when backward is over: fewest start-ups, no overlap."""

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        buckets = of_one_dtype(tensors, [arrival])
        everything = tuple(arrival)
        messages = tuple(replace(message, after=everything) for message in whole(buckets, tensors, arrival))
        return CommPlan(tuple(tensors), buckets, messages)


named_sentence(
    "bsp_a2a",
    "bsp / none / allreduce / sequential",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247",
    evidence="published",
    reproduces="throughput.csv of Shi et al. 2020: nine step times over 10 Gb/s, within 3 %",
    doc="BSP with one fused all-reduce after backward.",
)

named_sentence(
    "bsp_ps",
    "bsp / none / ps / sequential",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247; Li et al., OSDI 2014",
    doc="BSP with one buffer that is pushed after backward, in one key range for each server, and pulled.",
)
