"""Zico: training jobs on one GPU at the same time, started so that their peaks of memory do not coincide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.errors import ClusterError
from laconic.registry import technique

_ROUNDING = 1e-9  # seconds: periods below are those of numbers that should be equal


@dataclass(frozen=True)
class MemoryCurve:
    """What a job needs of a GPU's memory in the course of an iteration, as past iterations have shown.

    - `steps`: bytes in each of equal parts of an iteration, in which they rise and then fall.
    - `seconds`: of an iteration, at the speed that the job has beside others.
    """

    steps: tuple[float, ...]
    seconds: float

    def __post_init__(self) -> None:
        if not self.steps or min(self.steps) < 0 or self.seconds <= 0:
            raise ClusterError("a memory curve has at least one step, no bytes below 0 and a time above 0")

    @property
    def peak(self) -> float:
        """The most that it needs."""
        return max(self.steps)

    @staticmethod
    def learned(samples: Sequence[tuple[float, float]], steps: int, seconds: float) -> MemoryCurve:
        """Return the curve that covers samples of past iterations: the most that was seen in each step.

        - `samples`: positions in an iteration, from 0 to 1, and the bytes there.
        - `steps`: the parts of the iteration.
        - `seconds`: its time.
        """
        most = np.zeros(steps)
        for position, nbytes in samples:
            step = min(int(position * steps), steps - 1)
            most[step] = max(most[step], nbytes)
        return MemoryCurve(tuple(float(x) for x in most), seconds)


@dataclass(frozen=True)
class Running:
    """An iteration that has begun.

    - `curve`: the job's memory.
    - `began`: when, in seconds; it may lie ahead.
    """

    curve: MemoryCurve
    began: float

    @property
    def end(self) -> float:
        """When it ends."""
        return self.began + self.curve.seconds

    def edges(self) -> np.ndarray:
        """Return the times at which its memory changes."""
        count = len(self.curve.steps)
        return self.began + self.curve.seconds * np.arange(count + 1) / count

    def memory(self, times: np.ndarray) -> np.ndarray:
        """Return what it needs at each of some times, which are not edges: nothing before and after."""
        count = len(self.curve.steps)
        step = np.floor((times - self.began) / self.curve.seconds * count).astype(int)
        inside = (step >= 0) & (step < count)
        needed: np.ndarray = np.where(inside, np.array(self.curve.steps)[np.clip(step, 0, count - 1)], 0.0)
        return needed


def peak_together(runs: Sequence[Running]) -> float:
    """Return the most that iterations need together at any time.

    - `runs`: the iterations.
    """
    if not runs:
        return 0.0
    return float(_together(runs)[1].max())


def _together(runs: Sequence[Running]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which the sum of some iterations' memory changes, and the sum between each and the next."""
    edges = np.unique(np.concatenate([run.edges() for run in runs]))
    edges = edges[np.concatenate([[True], np.diff(edges) > _ROUNDING])]
    middles = (edges[1:] + edges[:-1]) / 2
    return edges, np.sum([run.memory(middles) for run in runs], axis=0)


@technique(
    "zico",
    axis="cluster",
    paper="Lim, Ahn, Choi, Sohn, Yang, USENIX ATC 2021",
    why_no_word="It times the iterations of jobs that any policy has put on one GPU.",
)
def delay(now: float, new: MemoryCurve, others: Sequence[Running], budget: float) -> float:
    """Return the shortest time for which a job must wait before its next iteration, so that all that run never need
    more memory together than there is: none where memory is plentiful; where the curves never fit, until the others
    have ended their iterations.

    Reading chosen: the paper states the constraint; each step of the new curve and each period of the others that do
    not fit together forbid an interval of beginnings, and the first moment outside all of these is taken.

    - `now`: the time, in seconds.
    - `new`: the memory of the job that would begin.
    - `others`: iterations that run, or will begin.
    - `budget`: bytes that there are.
    """
    if new.peak > budget:
        raise ClusterError(f"an iteration needs {new.peak:g} bytes and {budget:g} are there; it can never run")
    there = [run for run in others if run.end > now]
    if sum(run.curve.peak for run in there) + new.peak <= budget:
        return 0.0
    edges, sums = _together(there)
    own = new.seconds * np.arange(len(new.steps) + 1) / len(new.steps)
    clash = sums[:, None] + np.array(new.steps)[None, :] > budget * (1 + 1e-12)
    opens = (edges[:-1, None] - own[None, 1:])[clash]  # beginnings after this and before the next meet the clash
    closes = (edges[1:, None] - own[None, :-1])[clash]
    begin = now
    for k in np.argsort(opens, kind="stable"):
        if opens[k] + _ROUNDING >= begin:
            break
        begin = max(begin, float(closes[k]))
    return begin - now
