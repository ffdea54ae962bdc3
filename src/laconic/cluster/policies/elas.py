"""E-LAS: least attained service, corrected by the epochs that a job reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Advanced, Completion, Event, State
from laconic.registry import knob, technique

HOUR = 3600.0


@technique("elas", paper="Sultana et al., ICPP 2020")
@dataclass(frozen=True)
class Elas(Policy):
    """Whoever is expected to need the least more service runs, judged by what it attained, in GPU-seconds, and by the
    share of its epochs that it has reported: a job that took A for a share e needs A (1 - e) / e more. Nothing is known
    beforehand; before its first report a job counts with A.

    The paper's formula was not at hand; this reading of its abstract is ours. Expectations are put in queues, as
    Tiresias does: a job that runs gives way to those of a lower queue alone.
    """

    limits: tuple[float, ...] = knob(
        (0.5 * HOUR, 2 * HOUR, 8 * HOUR, 32 * HOUR, 128 * HOUR), above=0, doc="GPU-seconds at which a queue ends"
    )

    def init(self) -> dict[int, float]:
        return {}

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[int, float]
    ) -> tuple[Decision, dict[int, float]]:
        for event in events:
            if isinstance(event, Advanced):
                memory[event.job] = float(state.done(event.job)) / state.jobs[event.job].progress.work
            elif isinstance(event, Completion):
                memory.pop(event.job, None)
        decision = run_in_order(state, self.order(state, memory))
        return Decision(decision.grants, self._next_crossing(state, decision, memory)), memory

    def order(self, state: State, fractions: Mapping[int, float]) -> list[int]:
        """Return the active jobs, those that come first first.

        - `state`: the cluster now.
        - `fractions`: the share of its epochs that each job has reported, by its number, where it reported any.
        """
        jobs = np.fromiter(state.active, dtype=np.int64)
        left = expected_service(state.attained(jobs), np.array([fractions.get(int(job), 0.0) for job in jobs]))
        queues = np.searchsorted(self.limits, left + 1e-6, side="right")
        waits = np.array([job not in state.running for job in jobs.tolist()], dtype=bool)
        return [int(job) for job in jobs[np.lexsort((jobs, left, waits, queues))]]

    def _next_crossing(self, state: State, decision: Decision, fractions: Mapping[int, float]) -> float | None:
        """Return when a running job comes to the end of its queue, if it reports nothing before."""
        soonest = np.inf
        for job, grant in decision.grants.items():
            share = fractions.get(job, 0.0)
            slope = (1 - share) / share if share else 1.0
            attained = float(state.attained(job))
            ahead = [limit for limit in self.limits if limit > attained * slope + 1e-3]
            if ahead and slope > 0:
                soonest = min(soonest, (ahead[0] / slope - attained) / len(grant.slots))
        return state.now + max(float(soonest), 1e-3) if soonest < np.inf else None


def expected_service(attained: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return the GPU-seconds that jobs are expected to need still.

    - `attained`: what each has had.
    - `fractions`: the share of its epochs that each has reported; 0: none, and it counts with what it has had.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = np.where(fractions > 0, attained * (1 - fractions) / fractions, attained)
    return found
