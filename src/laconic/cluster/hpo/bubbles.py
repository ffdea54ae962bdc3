"""Bubbles of a pipeline: the time in which its stages wait, and small trials that run meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from laconic.errors import ClusterError


@dataclass(frozen=True)
class GPipe:
    """A training step in stages: all micro-batches forward, then all backward in the opposite order (Huang et al.,
    2019).

    - `stages`: how many.
    - `microbatches`: of a step.
    - `forward`, `backward`: the seconds of a micro-batch in a stage.
    """

    stages: int
    microbatches: int
    forward: float
    backward: float

    def orders(self) -> list[tuple[bool, int]]:
        """Return what every stage does, in its order: whether a pass is backward, and of which micro-batch."""
        ahead = [(False, m) for m in range(self.microbatches)]
        return ahead + [(True, m) for m in reversed(range(self.microbatches))]


@dataclass(frozen=True)
class Filled:
    """A step with trials in its bubbles.

    - `seconds`: of the step.
    - `bubbles`: the seconds in which stages of the undisturbed step wait, summed over stages.
    - `used`: of these, the seconds in which trials ran.
    - `iterations`: that trials did.
    """

    seconds: float
    bubbles: float
    used: float
    iterations: int


def fill(
    pipeline: GPipe,
    trial_seconds: float,
    trial_bytes: float = 0.0,
    free_bytes: float = float("inf"),
    *,
    margin: float = 1.2,
    slowdown: float = 0.01,
    actual: Callable[[], float] | None = None,
) -> Filled:
    """Run a step whose stages do iterations of a trial while they wait. An iteration is admitted when its profiled time
    and a margin fit into what is left of the bubble, which is known from the undisturbed step, and its memory into what
    the stage has left. One that takes longer than that delays the stage, and whoever waits for it.

    How Hydro admits iterations is recalled in outline; this rule is a reading.

    - `pipeline`: the step.
    - `trial_seconds`: of an iteration, as profiled.
    - `trial_bytes`: what it needs of memory.
    - `free_bytes`: what the large job leaves of it.
    - `margin`: how many times that has to fit.
    - `slowdown`: by how much the passes after a bubble are slowed by what the trial left in caches and queues.
    - `actual`: draws the seconds that an iteration takes in truth; default: as profiled.
    """
    if trial_seconds <= 0 or margin <= 0:
        raise ClusterError("a trial's iterations take time, and the margin is above 0")
    undisturbed = _run(pipeline, lambda stage, index, free: (0.0, 0), 0.0)
    draw = actual or (lambda: trial_seconds)

    def squeeze(stage: int, index: int, free: float) -> tuple[float, int]:
        until, now, count = undisturbed.starts[stage][index], free, 0
        while trial_bytes <= free_bytes and until - now >= margin * trial_seconds:
            now += draw()
            count += 1
        return now - free, count

    step = _run(pipeline, squeeze, slowdown)
    busy = pipeline.stages * pipeline.microbatches * (pipeline.forward + pipeline.backward)
    return Filled(step.seconds, pipeline.stages * undisturbed.seconds - busy, step.used, step.iterations)


class _Step(NamedTuple):
    """A step as it was run: when each pass of each stage began, and the flush after them; and what trials did."""

    starts: list[list[float]]
    seconds: float
    used: float
    iterations: int


def _run(pipeline: GPipe, squeeze: Callable[[int, int, float], tuple[float, int]], slowdown: float) -> _Step:
    """Run a step; `squeeze` says how long trials run before a stage's next pass, and how many iterations."""
    order, stages = pipeline.orders(), pipeline.stages
    ends: dict[tuple[bool, int, int], float] = {(False, -1, m): 0.0 for m in range(pipeline.microbatches)}
    starts: list[list[float]] = [[] for _ in range(stages)]
    free, used, iterations = [0.0] * stages, 0.0, 0
    while any(len(begun) < len(order) for begun in starts):
        for stage, begun in enumerate(starts):
            while len(begun) < len(order):
                backward, m = order[len(begun)]
                last = backward and stage == stages - 1
                before = (False, stage, m) if last else (backward, stage + (1 if backward else -1), m)
                if before not in ends:
                    break
                taken, count = squeeze(stage, len(begun), free[stage])
                used, iterations = used + taken, iterations + count
                begun.append(max(free[stage] + taken, ends[before]))
                seconds = (pipeline.backward if backward else pipeline.forward) * (1 + (slowdown if count else 0.0))
                free[stage] = ends[backward, stage, m] = begun[-1] + seconds
    for stage in range(stages):
        taken, count = squeeze(stage, len(order), free[stage]) if free[stage] < max(free) else (0.0, 0)
        used, iterations, free[stage] = used + taken, iterations + count, free[stage] + taken
    for begun in starts:
        begun.append(max(free))
    return _Step(starts, max(free), used, iterations)
