"""Shortest remaining time, or remaining service, first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.decision import Decision
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique


@technique("srtf", paper="Schrage, Operations Research 16(3), 1968", aliases=("srsf",))
@dataclass(frozen=True)
class Srtf(Policy):
    """Whoever has least to do runs; those that fall out are preempted. A job that is too large for what is left is
    passed over."""

    service: bool = knob(False, doc="whether the work left counts times its GPUs")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        jobs = state.numbers()
        left = state.left(jobs)
        if self.service:
            left *= state.gpus()[jobs]
        return run_in_order(state, jobs[left.argsort(kind="stable")]), None
