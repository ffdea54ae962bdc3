"""PipeDream: mini-batches follow each other without a flush, each with the weights of its forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from laconic.errors import PipelineError
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.schedule import PipelineSchedule
from laconic.parallel.pipeline.schedules.one_f_one_b import alternating
from laconic.parallel.pipeline.task import Op, Task, backward, forward, update
from laconic.registry import knob, technique


@technique(
    "pipedream",
    paper="Narayanan et al., SOSP 2019",
    evidence="published",
    reproduces="the configuration 15-1 of VGG-16 on 16 workers, from the authors' profile",
)
@dataclass(frozen=True)
class PipeDream(PipelineSchedule):
    """Every worker alternates one forward and one backward pass of mini-batches, and updates after each of them: a
    stage that is n stages from the end computes gradients for weights that are n updates old. A backward pass uses the
    weights of its forward pass, which are kept until then.

    Stages may be replicated: mini-batch k goes to replica k mod r, and replicas average their gradients at every
    update. What the paper calls vertical sync, one version through all stages, is not here.
    """

    replicas: str = knob("", doc="replicas of each stage, such as 7-1; one of each where empty")

    def replicas_of(self, devices: int) -> tuple[int, ...]:
        """Return how many replicas each stage has."""
        if not self.replicas:
            return (1,) * devices
        try:
            found = tuple(int(part) for part in self.replicas.split("-"))
        except ValueError:
            found = ()
        if not found or min(found) < 1:
            raise PipelineError(f'"{self.replicas}" are no numbers of replicas; write 7-1, say')
        if sum(found) != devices:
            raise PipelineError(f"pipedream({self.replicas}) is for {sum(found)} devices, not {devices}")
        return found

    def stages(self, devices: int) -> int:
        return len(self.replicas_of(devices))

    def make(self, devices: int, microbatches: int) -> Pipeline:
        replicas = self.replicas_of(devices)
        if microbatches % math.lcm(*replicas):
            raise PipelineError(
                f"pipedream needs a number of mini-batches that {math.lcm(*replicas)} divides, so that replicas update "
                f"equally often, not {microbatches}"
            )
        orders: list[tuple[Task, ...]] = []
        for stage, count in enumerate(replicas):
            ahead = in_flight(replicas, stage) - 1
            for replica in range(count):
                own = range(replica, microbatches, count)
                order = alternating([forward(stage, k) for k in own], [backward(stage, k) for k in own], ahead)
                orders.append(
                    tuple(
                        each
                        for task in order
                        for each in ((task, update(stage)) if task.op is Op.BACKWARD else (task,))
                    )
                )
        return Pipeline("pipedream", tuple(orders), stashes=True)


def in_flight(replicas: Sequence[int], stage: int = 0) -> int:
    """Return how many mini-batches a worker of a stage admits before the first of them returns: for the first stage,
    the number that the paper calls NOAM."""
    behind = list(accumulate(reversed(replicas)))[::-1]
    return -(-behind[stage] // replicas[stage])
