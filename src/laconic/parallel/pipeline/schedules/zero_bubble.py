"""ZB-H1: 1F1B whose gradients of weights come later, the later the nearer a stage is to the end."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.schedules.one_f_one_b import alternating
from laconic.parallel.pipeline.task import Op, Task, forward
from laconic.registry import technique


@technique("zero_bubble", paper="Qi et al., ICLR 2024")
@dataclass(frozen=True)
class ZeroBubble(PipelineSchedule):
    """The order that the paper calls ZB-H1: forward passes and gradients of inputs as in 1F1B; stage s computes the
    gradient of the weights of a microbatch s microbatches later, so that what is left of them fills the end. No device
    holds more activations than the first one with 1F1B."""

    def make(self, devices: int, microbatches: int) -> Pipeline:
        orders = []
        for stage in range(devices):
            inputs = [Task(Op.INPUT, stage, k) for k in range(microbatches)]
            passes = alternating([forward(stage, k) for k in range(microbatches)], inputs, devices - stage - 1)
            order: list[Task] = []
            for task in passes:
                order.append(task)
                if task.op is Op.INPUT and task.microbatch >= stage:
                    order.append(Task(Op.WEIGHT, stage, task.microbatch - stage))
            order += [Task(Op.WEIGHT, stage, k) for k in range(max(0, microbatches - stage), microbatches)]
            orders.append(order)
        return Pipeline("zero_bubble", with_flush(orders))
