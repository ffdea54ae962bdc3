"""What hosts draw: nothing while they are off, a base while any of their GPUs is busy, and more for each that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.outcome import Outcome


@dataclass(frozen=True)
class NodePower:
    """The power of a host with some busy GPUs.

    - `base_watts`: of a host that is on.
    - `gpu_watts`: of each busy GPU beside that.
    """

    base_watts: float = 300.0
    gpu_watts: float = 250.0

    def of_job(self, gpus: float, host_gpus: int) -> float:
        """Return the watts that a job answers for: its GPUs, and their part of the host's base.

        - `gpus`: how many it holds.
        - `host_gpus`: how many the host has.
        """
        return gpus * (self.gpu_watts + self.base_watts / host_gpus)


def energy_joules(outcome: Outcome, cluster: Cluster, power: NodePower) -> float:
    """Return the energy of a replay whose log was kept; hosts without a busy GPU are off.

    - `outcome`: what came of it.
    - `cluster`: the hosts.
    - `power`: what they draw.
    """
    steps: list[tuple[float, int, float]] = []  # when, on which host, how many GPUs more
    held: dict[int, tuple[float, Grant]] = {}

    def release(job: int, now: float) -> None:
        since, grant = held.pop(job)
        for host, _, share in grant.slots:
            steps.extend(((since, host, share), (now, host, -share)))

    for time, _, changes in outcome.log:
        for job in [job for job in held if outcome.completed[job] <= time]:
            release(job, float(outcome.completed[job]))
        for job in changes.stop:
            release(job, time)
        for job, grant in (*changes.resize, *changes.start):
            if job in held:
                release(job, time)
            held[job] = time, grant
    for job in list(held):
        release(job, float(outcome.completed[job]))
    busy, joules, before = np.zeros(len(cluster.hosts)), 0.0, 0.0
    for time, host, more in sorted(steps):
        on = busy > 1e-9
        joules += (time - before) * float(power.base_watts * on.sum() + power.gpu_watts * busy[on].sum())
        busy[host] += more
        before = time
    return joules
