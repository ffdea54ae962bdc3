"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, recomputing, with_flush
from laconic.parallel.pipeline.task import backward, forward
from laconic.registry import knob, technique


@technique("gpipe", paper="Huang et al., NeurIPS 2019")
@dataclass(frozen=True)
class GPipe(PipelineSchedule):
    """Every stage passes all microbatches forward, then all of them backward, the last one first. It holds the
    activations of all microbatches, or of their borders alone where it computes the rest again."""

    recompute: bool = knob(False, doc="whether a stage keeps a microbatch's input alone and computes the rest again")

    def make(self, devices: int, microbatches: int) -> Pipeline:
        orders = [
            [
                *(forward(stage, k) for k in range(microbatches)),
                *(backward(stage, k) for k in reversed(range(microbatches))),
            ]
            for stage in range(devices)
        ]
        return Pipeline("gpipe", with_flush(recomputing(orders, devices - 1) if self.recompute else orders))


def throughput(devices: int, microbatches: int) -> float:
    """Return how many times one device's throughput GPipe reaches with equal stages and no time for messages."""
    return microbatches * devices / (microbatches + devices - 1)
