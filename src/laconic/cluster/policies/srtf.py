"""Shortest remaining time, or remaining service, first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.decision import Decision
from laconic.cluster.job import Job
from laconic.cluster.policies.backlog import Backlog, touched
from laconic.cluster.policies.by_priority import change
from laconic.cluster.policy import Policy
from laconic.cluster.state import Estimate, Event, State
from laconic.registry import knob, technique


@dataclass
class Memory:
    """Who waits, in order, for as long as the same is known of jobs.

    - `jobs`, `estimates`: as they are handed in by the driver.
    - `corrections`: of the driver's tables.
    - `work`, `gpus`: the estimates of all jobs and their GPUs, as arrays.
    - `backlog`: who waits.
    - `decided`: who was started or preempted in the last decision.
    """

    jobs: Sequence[Job]
    estimates: Sequence[Estimate]
    corrections: int
    work: NDArray[np.float64]
    gpus: NDArray[np.float64]
    backlog: Backlog = field(default_factory=Backlog)
    decided: Sequence[int] = ()

    @staticmethod
    def of(state: State) -> Memory:
        """Return what is to be remembered of a cluster that is new."""
        work = np.array([whole.value for whole in state.estimates])
        gpus = np.array([job.gpus for job in state.jobs])
        return Memory(state.jobs, state.estimates, state.tables.corrections, work, gpus)

    def is_of(self, state: State) -> bool:
        """Tell whether what is remembered still holds."""
        is_same = self.jobs is state.jobs and self.estimates is state.estimates
        return is_same and self.corrections == state.tables.corrections


@technique("srtf", paper="Schrage, Operations Research 16(3), 1968", aliases=("srsf",))
@dataclass(frozen=True)
class Srtf(Policy):
    """Whoever has least to do runs; those that fall out are preempted. A job that is too large for what is left is
    passed over."""

    service: bool = knob(False, doc="whether the work left counts times its GPUs")

    def decide(self, state: State, events: Sequence[Event], memory: Memory | None) -> tuple[Decision, Memory]:
        known = memory if memory is not None and memory.is_of(state) else Memory.of(state)

        def left(jobs: NDArray[np.int64]) -> NDArray[np.float64]:
            found: NDArray[np.float64] = np.maximum(known.work[jobs] - state.done(jobs), 0.0)
            return found * known.gpus[jobs] if self.service else found

        if known is memory:
            known.backlog.follow(state, (*touched(events), *known.decided), left)
        if known is not memory or not known.backlog.is_of(state):
            known.backlog = Backlog()
            known.backlog.follow(state, state.waiting, left)
        chosen = known.backlog.chosen(state, left)
        known.decided = (*chosen.start, *chosen.stop)
        return change(state, chosen.start, chosen.stop), known
