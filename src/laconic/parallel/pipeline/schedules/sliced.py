"""AutoPipe's slicer: the first microbatches in halves, so that the last stage begins sooner."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import PipelineError
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.schedules.one_f_one_b import alternating
from laconic.parallel.pipeline.task import backward, forward
from laconic.parallel.pipeline.timeline import timeline
from laconic.registry import knob, technique


@technique("autopipe", paper="Liu et al., IEEE CLUSTER 2022")
@dataclass(frozen=True)
class Sliced(PipelineSchedule):
    """1F1B whose first microbatches are cut in two halves: the last stage receives its first input after half the time.

    How many are cut is the smallest number with the shortest step, where stages are equal and a backward pass takes
    twice a forward pass, unless it is said; `slices` computes it for stages that are known. The paper's own rule is not
    public.
    """

    sliced: int = knob(-1, low=-1, doc="microbatches that are cut in halves; -1 for the best number")

    def make(self, devices: int, microbatches: int) -> Pipeline:
        if self.sliced > microbatches:
            raise PipelineError(f"{self.sliced} of {microbatches} microbatches cannot be cut in halves")
        if self.sliced >= 0:
            return sliced(devices, microbatches, self.sliced)
        return sliced(devices, microbatches, slices(StageCosts.equal(devices, 1.0, 2.0), microbatches))


def slices(costs: StageCosts, microbatches: int) -> int:
    """Return how many microbatches are to be cut in halves: the smallest number with the shortest step."""
    devices = len(costs.forward)
    seconds = [
        timeline(sliced(devices, microbatches, count), costs).seconds for count in range(min(devices, microbatches) + 1)
    ]
    return seconds.index(min(seconds))


def sliced(devices: int, microbatches: int, count: int) -> Pipeline:
    """Return 1F1B in which so many microbatches are cut in halves, which are microbatches of their own."""
    sizes = (0.5,) * (2 * count) + (1.0,) * (microbatches - count)
    orders = []
    for stage in range(devices):
        ahead, held = 0, 0.0
        while ahead < len(sizes) and held + sizes[ahead] <= devices - stage - 1:
            held += sizes[ahead]
            ahead += 1
        numbers = range(len(sizes))
        orders.append(alternating([forward(stage, k) for k in numbers], [backward(stage, k) for k in numbers], ahead))
    return Pipeline("autopipe", with_flush(orders), sizes=sizes)
