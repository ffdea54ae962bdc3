"""Out-of-order backpropagation in pipelines: gradients of inputs first, those of weights later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from laconic.parallel.pipeline.greedy import served
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule, with_flush
from laconic.parallel.pipeline.task import Op, Task
from laconic.registry import knob, technique


@technique("ooo_backprop_pp", paper="Oh et al., EuroSys 2022")
@dataclass(frozen=True)
class OutOfOrder(PipelineSchedule):
    """A backward pass is two tasks: the gradient of the input is computed and sent at once (gradient fast-forwarding),
    that of the weights when nothing else is left to do, or when the device would hold more than p microbatches.

    With several groups on a device, group i of the layers lies on device i mod p (modulo allocation), so that every
    device gets backward work early, for more messages. In which order the paper's scheduler takes gradients of weights
    is not known to us: here the oldest comes first.
    """

    groups: int = knob(1, low=1, doc="groups of layers on a device")

    def stages(self, devices: int) -> int:
        return devices * self.groups

    def make(self, devices: int, microbatches: int) -> Pipeline:
        most = self.stages(devices)
        orders = served(
            devices,
            most,
            range(microbatches),
            lambda stage, k: stage % devices,
            lambda task: (task.op is Op.FORWARD, task.microbatch, -task.stage),
            limit=lambda device: most - device,
        )
        return Pipeline("ooo_backprop_pp", with_flush(_fast_forwarded(order, most) for order in orders))


def _fast_forwarded(order: Iterable[Task], most: int) -> list[Task]:
    """Return an order whose backward passes are cut in two, with those of weights as late as so many microbatches
    allow."""
    found: list[Task] = []
    owed: list[Task] = []  # gradients of weights that are not computed yet
    held = 0
    for task in order:
        if task.op is Op.FORWARD:
            if held >= most:
                found.append(owed.pop(0))
                held -= 1
            held += 1
            found.append(task)
        else:
            found.append(Task(Op.INPUT, *task[1:]))
            owed.append(Task(Op.WEIGHT, *task[1:]))
    return found + owed
