"""`Pipeline`: the order of what each device computes, verified when it is constructed."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import PipelineError
from laconic.parallel.pipeline.orders import Orders
from laconic.parallel.pipeline.task import Task
from laconic.parallel.pipeline.verify import verify


@dataclass(frozen=True)
class Pipeline(Orders):
    """What each device computes, in order: a training step that can be carried out.

    Which device holds a stage follows from the orders: a stage may lie on several devices, each of which takes some of
    the microbatches, and a device may hold several stages. Updates of a stage that lies on several devices sum their
    gradients: the n-th update of a stage is one event on all of them.
    """

    def __post_init__(self) -> None:
        if self.sizes and (len(self.sizes) != self.microbatches or min(self.sizes) <= 0):
            raise PipelineError(f"{self.name} has {self.microbatches} microbatches, each with a size above zero")
        verify(self)

    @classmethod
    def parse(cls, text: str, name: str = "written", stashes: bool = False) -> Pipeline:
        """Return the pipeline whose devices are lines of tasks, such as `F0.0 F0.1 B0.0 B0.1 U0`."""
        lines = [line for line in text.splitlines() if line.strip()]
        return cls(name, tuple(tuple(map(Task.parse, line.split())) for line in lines), stashes=stashes)

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, order)) for order in self.orders)
