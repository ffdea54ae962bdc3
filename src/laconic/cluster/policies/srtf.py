"""Shortest remaining time, or remaining service, first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Estimate, Event, State
from laconic.registry import knob, technique


class _Table(NamedTuple):
    """Estimates as arrays, so that ordering many jobs takes no loop."""

    estimates: Sequence[Estimate]
    work: np.ndarray
    gpus: np.ndarray


@technique("srtf", paper="Schrage, Operations Research 16(3), 1968", aliases=("srsf",))
@dataclass(frozen=True)
class Srtf(Policy):
    """Whoever has least to do runs; those that fall out are preempted. A job that is too large for what is left is
    passed over."""

    service: bool = knob(False, doc="whether the work left counts times its GPUs")

    def decide(self, state: State, events: Sequence[Event], memory: _Table | None) -> tuple[Decision, _Table]:
        del events
        if memory is None or memory.estimates is not state.estimates:
            memory = _Table(
                state.estimates,
                np.array([whole.value for whole in state.estimates]),
                np.array([job.gpus for job in state.jobs]),
            )
        known = memory

        def shortest(jobs: np.ndarray) -> np.ndarray:
            left = np.maximum(known.work[jobs] - state.done(jobs), 0.0)
            if self.service:
                left = left * known.gpus[jobs]
            found: np.ndarray = jobs[left.argsort(kind="stable")]
            return found

        return run_in_order(state, shortest), memory
