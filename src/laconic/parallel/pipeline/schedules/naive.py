"""Layer-wise model parallelism: one batch at a time passes through the devices."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.task import backward, forward
from laconic.registry import technique


@technique("model_parallel_naive", paper="Dean et al., NIPS 2012")
@dataclass(frozen=True)
class ModelParallel(PipelineSchedule):
    """Each device holds consecutive layers, and only one of them works at any time: a microbatch passes forward and
    backward before the next one begins."""

    def make(self, devices: int, microbatches: int) -> Pipeline:
        orders = [
            [task for k in range(microbatches) for task in (forward(stage, k), backward(stage, k))]
            for stage in range(devices)
        ]
        return Pipeline("model_parallel_naive", with_flush(orders))
