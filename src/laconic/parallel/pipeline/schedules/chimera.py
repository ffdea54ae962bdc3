"""Chimera: two pipelines in opposite directions over two copies of the model."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import PipelineError
from laconic.parallel.pipeline.greedy import served
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.task import Op, Task
from laconic.registry import technique


@technique("chimera", paper="Li and Hoefler, SC 2021")
@dataclass(frozen=True)
class Chimera(PipelineSchedule):
    """Half of the microbatches pass the devices from the first to the last, the other half from the last to the first,
    over a second copy of each stage; whenever a device can pass one backward it does. The two copies sum their
    gradients.

    More microbatches than devices come in units of as many as there are devices; forward passes of the next unit fill
    the end of the one before, as long as no device holds more microbatches than there are devices. The paper's forward
    doubling and backward halving for that case, and more than two pipelines, are not here.
    """

    def make(self, devices: int, microbatches: int) -> Pipeline:
        if devices % 2:
            raise PipelineError(f"chimera needs an even number of devices, not {devices}")
        last = microbatches - microbatches % devices  # where a unit begins that has fewer microbatches than devices

        def device_of(stage: int, k: int) -> int:
            unit = microbatches - last if k >= last else devices
            return stage if k % devices < (unit + 1) // 2 else devices - 1 - stage

        def urgency(task: Task) -> tuple[int, ...]:
            """Passes backward come first; of forward ones, those of earlier units, then those that are farther."""
            if task.op is Op.FORWARD:
                return (1, task.microbatch // devices, devices - task.stage, task.microbatch)
            return (0, devices - task.stage, task.microbatch)

        orders = served(devices, devices, range(microbatches), device_of, urgency, limit=lambda device: devices)
        return Pipeline("chimera", with_flush(orders))
