"""Interleaved 1F1B: several stages on each device, so that the pipeline fills sooner."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import PipelineError
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.schedules.one_f_one_b import alternating
from laconic.parallel.pipeline.task import backward, forward
from laconic.registry import knob, technique


@technique("interleaved_1f1b", paper="Narayanan et al., SC 2021", aliases=("interleaved",))
@dataclass(frozen=True)
class Interleaved(PipelineSchedule):
    """Device i holds stages i, i+p, i+2p and so on; microbatches go round the devices in groups of p, once for each of
    them. The bubble shrinks by the number of stages a device holds, and the messages grow by it."""

    chunks: int = knob(2, low=1, doc="stages on a device")

    def stages(self, devices: int) -> int:
        return devices * self.chunks

    def make(self, devices: int, microbatches: int) -> Pipeline:
        if microbatches % devices:
            raise PipelineError(
                f"interleaved_1f1b needs a number of microbatches that {devices} devices divide, not {microbatches}"
            )
        orders = []
        for device in range(devices):
            places = [self._place(k, devices) for k in range(microbatches * self.chunks)]
            forwards = [forward(device + chunk * devices, k) for chunk, k in places]
            backwards = [backward(device + (self.chunks - 1 - chunk) * devices, k) for chunk, k in places]
            ahead = (
                devices - device - 1 if self.chunks == 1 else 2 * (devices - device - 1) + (self.chunks - 1) * devices
            )
            orders.append(alternating(forwards, backwards, ahead))
        return Pipeline("interleaved_1f1b", with_flush(orders))

    def _place(self, item: int, devices: int) -> tuple[int, int]:
        """Return the stage, counted on its device, and the microbatch of a device's n-th pass."""
        rounds, rest = divmod(item, devices * self.chunks)
        return rest // devices, rounds * devices + rest % devices
