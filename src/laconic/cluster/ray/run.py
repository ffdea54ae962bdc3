"""Run jobs on the Ray cluster that this process is connected to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ray

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.ray import nodes
from laconic.cluster.ray.controller import Run
from laconic.cluster.ray.work import Task
from laconic.errors import ClusterError


@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001}, max_restarts=-1, max_task_retries=-1)
class Controller:
    """An actor on Ray's head node that is started again if it dies, and goes on then from its journal."""

    def __init__(self, *facts: object) -> None:
        self._facts = facts

    def run(self) -> Outcome:
        """Return when all jobs are done."""
        return Run(*self._facts).run()  # type: ignore[arg-type]


def run(
    jobs: Sequence[tuple[Job, Task]],
    policy: Policy,
    folder: Path,
    cluster: Cluster | None = None,
    save_every: float = 60.0,
) -> Outcome:
    """Run jobs as a policy decides, and return what came of it. Over the folder of a run that was cut off it goes on.

    - `jobs`: the jobs, each with what its workers do. They arrive in real time, counted from the start.
    - `policy`: who decides.
    - `folder`: of the journal and of checkpoints, which all hosts can reach.
    - `cluster`: the hosts; default: those that nodes of Ray say to be.
    - `save_every`: seconds between checkpoints of a job.
    """
    ordered = sorted(jobs, key=lambda pair: pair[0].arrival)
    names = [job.name for job, _ in ordered]
    if len(set(names)) < len(names):
        raise ClusterError("two jobs have the same name; give each a name of its own: its checkpoints are under it")
    hosts = cluster or nodes.cluster()
    controller = Controller.remote(  # type: ignore[attr-defined]
        [job for job, _ in ordered], [task for _, task in ordered], hosts, policy, folder.resolve(), save_every
    )
    try:
        outcome: Outcome = ray.get(controller.run.remote())
        return outcome
    finally:
        ray.kill(controller)
