"""Jobs that are stopped at the accuracy they need, while the cluster is overloaded."""

from __future__ import annotations

from typing import NamedTuple


class Accuracy(NamedTuple):
    """What is known of a job's accuracy.

    - `reached`: so far.
    - `required`: what its user asked for.
    - `best`: the most that it is predicted to reach.
    - `may_stop`: whether the user agreed to stop it there.
    """

    reached: float
    required: float
    best: float
    may_stop: bool


def stops(jobs: dict[int, Accuracy], queued: int, mean_load: float, limit: float = 0.9) -> list[int]:
    """Return the jobs to stop (MLF-C): those that have reached what they need, or the best that they are predicted to
    reach, where their users agreed; none unless tasks queue or the servers are overloaded.

    - `jobs`: those that run, by number.
    - `queued`: tasks that wait.
    - `mean_load`: of the servers.
    - `limit`: the load from which on they are overloaded.
    """
    if not queued and mean_load <= limit:
        return []
    return [number for number, job in jobs.items() if job.may_stop and job.reached >= min(job.required, job.best)]
