"""Step 1, profile: what is known of a job, from a table, or from what others of its kind took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from laconic.cluster.elastic import curve_of
from laconic.cluster.sending import Sending
from laconic.cluster.state import Completion, Estimate, Event, State

SOURCES = ("table", "history")
NOTHING = Estimate(math.inf, "nobody", 0.0)


class Features(NamedTuple):
    """What is known of a job before it runs.

    - `work`: all of its work; infinite where nobody knows.
    - `speeds`: work a second on 0, 1, ... workers, 0 where it cannot run so; empty where nobody knows or it
      has no choice.
    - `compute_seconds`, `nbytes`: of an iteration, where it says so.
    - `deadline`: when it should be done.
    """

    work: Estimate
    speeds: tuple[float, ...] = ()
    compute_seconds: float = 0.0
    nbytes: float = 0.0
    deadline: float = math.inf


@dataclass
class History:
    """What was measured: what finished jobs took, which the sixth step feeds back to the first, and short runs.

    - `works`: the work of each finished job, by its kind.
    - `heard`: when the last one of a kind was done.
    - `speeds`: of jobs that are there, the speeds on numbers of workers that each could have.
    """

    works: dict[str, list[float]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    speeds: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def hear(self, state: State, events: Sequence[Event]) -> None:
        """Note the jobs that are done.

        - `state`: the cluster now.
        - `events`: what happened.
        """
        for event in events:
            if isinstance(event, Completion):
                kind = state.jobs[event.job].kind
                self.works.setdefault(kind, []).append(float(state.tables.base[event.job]))
                self.heard[kind] = state.now
                self.speeds.pop(event.job, None)

    def estimate(self, kind: str) -> Estimate:
        """Return the mean of what jobs of a kind took, or of what all took where none of the kind is done.

        - `kind`: of the job.
        """
        kinds, source = ([kind], f"jobs of kind {kind}") if kind in self.works else (list(self.works), "other jobs")
        known = [work for one in kinds for work in self.works[one]]
        return Estimate(sum(known) / len(known), source, max(self.heard[one] for one in kinds)) if known else NOTHING


def profile(source: str | None, state: State, history: History) -> Mapping[int, Features]:
    """Return what is known of every job that is there.

    - `source`: `table` for what the driver knows of each, `history` for the mean work of finished jobs of its kind and
      the speeds of a short run; none: nothing is known.
    - `state`: the cluster now.
    - `history`: what finished jobs took.
    """
    found = {}
    for number in state.active:
        job = state.jobs[number]
        if source is None:
            found[number] = Features(NOTHING, deadline=job.deadline)
            continue
        work = state.estimates[number] if source == "table" else history.estimate(job.kind)
        sends = job.progress if isinstance(job.progress, Sending) else None
        iteration = (sends.compute, sends.nbytes) if sends is not None else (0.0, 0.0)
        if number not in history.speeds:
            is_elastic = job.least < job.most
            history.speeds[number] = tuple(curve_of(job, state.cluster).tolist()) if is_elastic else ()
        found[number] = Features(work, history.speeds[number], *iteration, job.deadline)
    return found
