"""What came of a replay: when each job ran and was done, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from laconic.cluster.decision import Changes
from laconic.cluster.job import Job
from laconic.cluster.state import Event

PARTS = ("waiting", "placing", "computing", "communicating", "stalled")
"""Where a job's time goes: without GPUs; starting or restoring on them; computing; waiting for messages; holding GPUs
on which it cannot proceed."""


class Logged(NamedTuple):
    """One decision: when it was made, upon what, and what it changed."""

    time: float
    events: tuple[Event, ...]
    changes: Changes


@dataclass(frozen=True)
class Outcome:
    """A replay's end. Arrays are by the number of a job, in seconds.

    - `jobs`: the jobs.
    - `first_start`: when each ran first.
    - `completed`: when each was done.
    - `parts`: the time that went to each of `PARTS`, a row a part.
    - `restarts`: how often each was started again.
    - `attained`: the GPU-seconds that each held.
    - `decisions`: how often the policy was asked.
    - `log`: the decisions that changed something, where they were kept.
    """

    jobs: Sequence[Job]
    first_start: np.ndarray
    completed: np.ndarray
    parts: np.ndarray
    restarts: np.ndarray
    attained: np.ndarray
    decisions: int
    log: list[Logged] = field(default_factory=list)

    @property
    def arrivals(self) -> np.ndarray:
        """When each job was submitted."""
        return np.array([job.arrival for job in self.jobs])

    @property
    def completion_times(self) -> np.ndarray:
        """How long each job took from its submission on: what the field calls JCT."""
        taken: np.ndarray = self.completed - self.arrivals
        return taken

    @property
    def mean_completion_time(self) -> float:
        """The mean of these."""
        return float(self.completion_times.mean())

    @property
    def makespan(self) -> float:
        """The time from the first submission to the last completion."""
        return float(self.completed.max() - self.arrivals.min())
