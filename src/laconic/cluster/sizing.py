"""How many hosts jobs need to be done in time under a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.errors import ClusterError


class Target(NamedTuple):
    """What is asked for, in seconds from a job's submission to its end.

    - `mean`: that of all jobs; none: anything.
    - `slowest`: that of the 99th of a hundred; none: anything.
    """

    mean: float | None = None
    slowest: float | None = None

    def is_met(self, outcome: Outcome) -> bool:
        """Tell whether a replay was as asked for.

        - `outcome`: what came of it.
        """
        times = outcome.completion_times
        limits = ((self.mean, float(times.mean())), (self.slowest, float(np.percentile(times, 99))))
        return all(limit is None or taken <= limit for limit, taken in limits)


class Sized(NamedTuple):
    """The fewest hosts that do, with what came of them; or those on which nobody waits, where even they do not.

    - `hosts`: how many.
    - `outcome`: of a replay on them.
    - `is_met`: whether the target is.
    """

    hosts: int
    outcome: Outcome
    is_met: bool


def fewest_hosts(
    jobs: Sequence[Job],
    gpus: int,
    policy: Policy,
    target: Target,
    costs: Costs | None = None,
    tell: Callable[[int], None] = lambda hosts: None,
) -> Sized:
    """Return the fewest hosts with which a target is met, by bisection: more hosts are taken to be no worse.

    - `jobs`: the jobs.
    - `gpus`: of each host.
    - `policy`: who decides.
    - `target`: what is asked for.
    - `costs`: of starting and stopping.
    - `tell`: is told the number of hosts before each replay.
    """
    if target == Target():
        raise ClusterError("nothing is asked for; say how long jobs may take on average, or 99 % of them")

    def tried(hosts: int) -> Sized:
        tell(hosts)
        outcome = replay(jobs, Cluster.uniform(hosts, gpus), policy, costs)
        return Sized(hosts, outcome, target.is_met(outcome))

    least = math.ceil(max(job.workers for job in jobs) / gpus)
    most = max(math.ceil(sum(job.workers for job in jobs) / gpus), least)
    found = tried(least)
    low = least
    while not found.is_met and found.hosts < most and found.outcome.parts[0].sum() > 0:  # somebody still waits
        low = found.hosts + 1
        found = tried(min(2 * found.hosts, most))
    if not found.is_met:
        return found
    while low < found.hosts:
        middle = tried((low + found.hosts) // 2)
        if middle.is_met:
            found = middle
        else:
            low = middle.hosts + 1
    return found
