"""AFS, the share that ignores the future on purpose: GPUs one at a time, to the short job or to the efficient one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.elastic import curve_of
from laconic.cluster.policies.by_shares import run_with_shares
from laconic.cluster.policy import Policy
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique


@technique("afs", paper="Hwang et al., NSDI 2021")
@dataclass(frozen=True)
class Afs(Policy):
    """At every event all GPUs are handed out anew, one at a time, as if no job that ends left its GPUs to another.

    Jobs without a GPU come first, the shortest first. Of two that have some, the one that would end first wins the next
    GPU, unless the other's gain, as a share of its speed after it, is above the first one's gain as a share of its
    speed before it. A job that would not be faster is not handed any. Where lengths are unknown, a job that was served
    less counts as shorter; of that variant the paper's text was not at hand, and the same rule is used.
    """

    known: bool = knob(True, doc="whether lengths are known; otherwise the service that was attained stands for them")

    def init(self) -> dict[int, np.ndarray]:
        return {}

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[int, np.ndarray]
    ) -> tuple[Decision, dict[int, np.ndarray]]:
        for event in events:
            if isinstance(event, Arrival):
                memory[event.job] = curve_of(state.jobs[event.job], state.cluster)
            elif isinstance(event, Completion):
                memory.pop(event.job, None)
        lengths = {
            job: state.remaining(job).value if self.known else float(state.attained(job)) for job in state.active
        }
        gpus = state.room.gpus + sum(len(grant.slots) for grant in state.running.values())
        return run_with_shares(state, apathetic_shares(lengths, memory, gpus)), memory


def apathetic_shares(lengths: Mapping[int, float], curves: Mapping[int, np.ndarray], gpus: int) -> dict[int, int]:
    """Return how many GPUs each job gets.

    - `lengths`: the work left of each job, by its number.
    - `curves`: the speed of each on 0, 1, ... GPUs; it takes none below the first that is above 0.
    - `gpus`: how many there are.
    """
    shares: dict[int, int] = {}
    for job in sorted(lengths, key=lambda job: (lengths[job] / _first(curves[job])[1], job)):
        least = _first(curves[job])[0]
        if least <= gpus:
            shares[job] = least
            gpus -= least
            if not gpus:
                return shares
    growing = [job for job in shares if _gain(curves[job], shares[job]) > 0]
    while gpus and growing:
        top = growing[0]
        for other in growing[1:]:
            top = _winner(top, other, lengths, curves, shares)
        shares[top] += 1
        gpus -= 1
        if _gain(curves[top], shares[top]) <= 0:
            growing.remove(top)
    return shares


def _first(curve: np.ndarray) -> tuple[int, float]:
    """Return the fewest GPUs that a job can do with, and its speed on them."""
    least = int(np.argmax(curve > 0))
    return least, float(curve[least])


def _gain(curve: np.ndarray, share: int) -> float:
    return float(curve[share + 1] - curve[share]) if share + 1 < len(curve) else 0.0


def _winner(
    one: int, other: int, lengths: Mapping[int, float], curves: Mapping[int, np.ndarray], shares: Mapping[int, int]
) -> int:
    """Return which of two jobs gets the next GPU."""
    first, second = sorted((one, other), key=lambda job: (lengths[job] / curves[job][shares[job]], job))
    slow, fast = curves[second], curves[first]
    later = _gain(slow, shares[second]) / slow[shares[second] + 1]
    sooner = _gain(fast, shares[first]) / fast[shares[first]]
    return second if later > sooner else first
