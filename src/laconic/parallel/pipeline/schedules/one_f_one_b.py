"""1F1B with a flush: a stage holds no more microbatches than there are stages from it to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, recomputing, with_flush
from laconic.parallel.pipeline.task import Task, backward, forward
from laconic.registry import knob, technique


@technique(
    "one_f_one_b",
    paper="Narayanan et al., ICML 2021; Fan et al., PPoPP 2021",
    aliases=("pipedream_flush", "dapple"),
)
@dataclass(frozen=True)
class OneFOneB(PipelineSchedule):
    """After as many forward passes as there are stages behind it, a stage alternates one forward and one backward pass;
    all weights are updated at the end."""

    recompute: bool = knob(False, doc="whether a stage keeps a microbatch's input alone and computes the rest again")

    def make(self, devices: int, microbatches: int) -> Pipeline:
        orders = [
            alternating(
                [forward(stage, k) for k in range(microbatches)],
                [backward(stage, k) for k in range(microbatches)],
                devices - stage - 1,
            )
            for stage in range(devices)
        ]
        return Pipeline("one_f_one_b", with_flush(recomputing(orders, devices - 1) if self.recompute else orders))


def alternating(forwards: Sequence[Task], backwards: Sequence[Task], ahead: int) -> list[Task]:
    """Return forward passes that are so many ahead of the backward passes and alternate with them."""
    ahead = min(ahead, len(forwards))
    pairs = [task for pair in zip(forwards[ahead:], backwards, strict=False) for task in pair]
    return [*forwards[:ahead], *pairs, *backwards[len(forwards) - ahead :]]
