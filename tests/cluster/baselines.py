"""Policies that others are compared with where the row asks for them, as short as they can be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.decision import Decision
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Event, State


@dataclass(frozen=True)
class TwoQueues(Policy):
    """Tiresias with two queues: jobs that have attained less than a limit of GPU-seconds come before the others, each
    queue in the order of arrivals."""

    limit: float = 3600.0

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        order = sorted(state.active, key=lambda job: (state.attained(job) >= self.limit - 1e-6, job))
        decision = run_in_order(state, order)
        due = [
            (self.limit - state.attained(job)) / len(grant.slots)
            for job, grant in decision.grants.items()
            if state.attained(job) < self.limit - 1e-6
        ]
        return Decision(decision.grants, state.now + max(min(due), 1e-3) if due else None), None


@dataclass(frozen=True)
class EarliestDeadline(Policy):
    """Earliest deadline first, without admission and without preemption: whole gangs as large as they ask for; who does
    not fit is passed over where `backfill` says so."""

    backfill: bool = True
    preempts: bool = False

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        running = [] if self.preempts else list(state.running)
        rest = sorted(
            (job for job in state.active if job not in running), key=lambda job: (state.jobs[job].deadline, job)
        )
        return run_in_order(state, [*running, *rest]), None
