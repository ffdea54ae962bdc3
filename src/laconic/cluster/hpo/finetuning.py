"""Fine-tuning jobs of known backbones: how long they take, alone and merged, and what they keep in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Backbone:
    """A foundation model as a profile knows it.

    - `name`: which.
    - `step_seconds`: what a step takes whatever its batch: kernels, the optimizer.
    - `reduce_seconds`: what averaging its gradients between several GPUs adds.
    - `sample_seconds`: what each sample of a step takes on one GPU.
    - `model_bytes`: its weights, gradients and optimizer state.
    - `sample_bytes`: the activations of a sample.
    """

    name: str
    step_seconds: float
    reduce_seconds: float
    sample_seconds: float
    model_bytes: float = 0.0
    sample_bytes: float = 0.0

    def seconds(self, batch: float, gpus: int) -> float:
        """Return what a step takes.

        - `batch`: samples of all tasks in it.
        - `gpus`: among which they are split.
        """
        return self.step_seconds + (gpus > 1) * self.reduce_seconds + batch * self.sample_seconds / gpus


@dataclass(frozen=True)
class FineTuning:
    """A job that trains a backbone with a head of its own; its work is its seconds, alone on the GPUs it asks for.

    Jobs of one backbone that hold the same devices are one merged job: a step has the batches of all, so that what a
    step takes whatever its batch is paid once. A job's share of a device says how many were merged, not how fast it is.

    - `backbone`: what it trains.
    - `samples`: of all epochs together.
    - `batch`: of its own in a step.
    - `gpus`: for which its work is counted.
    - `head_bytes`: its head, with gradients and optimizer state.
    """

    backbone: Backbone
    samples: int
    batch: int
    gpus: int = 1
    head_bytes: float = 0.0

    @cached_property
    def alone(self) -> float:
        """The seconds of a step, alone on the GPUs it asks for."""
        return self.backbone.seconds(self.batch, self.gpus)

    @property
    def work(self) -> float:
        """The seconds of all steps: samples over the profiled throughput."""
        return self.samples / self.batch * self.alone

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster
        others = [job.progress for job in beside]
        if any(not isinstance(other, FineTuning) or other.backbone != self.backbone for other in others):
            raise ClusterError("a fine-tuning job shares its GPUs only with those of its backbone, merged with them")
        batch = self.batch + sum(other.batch for other in others if isinstance(other, FineTuning))
        return Rate(self.alone / self.backbone.seconds(batch, len(grant.slots)), self.work)


def merged_bytes(tasks: Sequence[FineTuning], gpus: int) -> float:
    """Return what a merged job needs of each GPU's memory: one backbone, the heads, and a step's activations.

    - `tasks`: those that are merged; one alone is no different.
    - `gpus`: on which.
    """
    backbone = tasks[0].backbone
    batch = sum(task.batch for task in tasks)
    return backbone.model_bytes + sum(task.head_bytes for task in tasks) + backbone.sample_bytes * batch / gpus


def ends(left: Iterable[tuple[FineTuning, float]], gpus: int) -> list[float]:
    """Return when each task of a merged job is done, in seconds from now: who is done leaves, and steps become shorter.

    - `left`: the tasks, each with the work that it has still to do.
    - `gpus`: on which they run together.
    """
    tasks = list(left)
    steps = [work / task.alone for task, work in tasks]
    found, now, past = [0.0] * len(tasks), 0.0, 0.0
    batch = float(sum(task.batch for task, _ in tasks))
    for i in sorted(range(len(tasks)), key=lambda i: (steps[i], i)):
        now += (steps[i] - past) * tasks[i][0].backbone.seconds(batch, gpus)
        found[i], past, batch = now, steps[i], batch - tasks[i][0].batch
    return found


def fewest_wasted(backbone: Backbone, batch: int, most: int, gpu_bytes: float, efficiency: float = 0.7) -> int:
    """Return the GPUs to ask for: the most at which each still does a large part of what it would do at best.

    - `backbone`: what is trained.
    - `batch`: of a step.
    - `most`: GPUs that there are.
    - `gpu_bytes`: the memory of each.
    - `efficiency`: how large that part is.
    """
    fitting = [
        count for count in range(1, min(most, batch) + 1)
        if backbone.model_bytes + backbone.sample_bytes * batch / count <= gpu_bytes
    ]  # fmt: skip
    if not fitting:
        raise ClusterError(f"{backbone.name} with a batch of {batch} fits on no {most} GPUs; take a smaller batch")
    each = {count: 1 / (count * backbone.seconds(batch, count)) for count in fitting}
    return max(count for count in fitting if each[count] >= efficiency * max(each.values()))
