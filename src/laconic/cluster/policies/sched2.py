"""Sched2: a network decides which waiting job starts, and how close together its GPUs are to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.learned.learner import imitate, improve
from laconic.cluster.learned.notes import Noted, Notes
from laconic.cluster.learned.scorer import Episode, Scorer, Step, fresh
from laconic.cluster.policies.philly import local
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.room import Room
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique

LEVELS = 3
"""On as few hosts as could hold the gang; within a rack; anywhere."""
FEATURES = 15


@technique("sched2", paper="Luan et al., GLOBECOM 2019")
@dataclass(frozen=True)
class Sched2(Policy):
    """Whenever something happens, a network scores each job of a window of the queue with each level of locality, and
    waiting; the best one is done, until that is waiting or nothing fits. Nothing is preempted.

    The network sees, of a job, the GPUs that it asks for, how long it has waited, its estimated length and its speed at
    the level; of the cluster, what is free, in how many pieces, and how long the queue is: so a job that is sensitive
    to locality can wait for better GPUs. Placements with a level are those of `philly`. What cannot be placed is
    masked, and so is waiting while nothing runs.

    `train` finds the weights on simulated traces, by policy gradients whose reward is minus the number of unfinished
    jobs, over time; without weights the first job that fits starts, as close together as it can. The paper's algorithm
    (value or policy based), reward and network are not established: this is a reading of its abstract.
    """

    weights: tuple[float, ...] = knob((), doc="of the network, as `train` returns them")
    window: int = knob(16, low=1, doc="jobs of the queue that are looked at, in the order of arrivals")
    seed: int | None = knob(None, doc="of the random numbers by which it explores; none: it takes what is best")

    def init(self) -> Notes | None:
        return None if self.seed is None else Notes.of(self.seed)

    def decide(self, state: State, events: Sequence[Event], memory: Notes | None) -> tuple[Decision, Notes | None]:
        del events
        waiting, room = state.waiting, state.room.copy()
        start: dict[int, Grant] = {}
        scorer = Scorer(FEATURES, self.weights)
        while waiting and room.gpus:
            jobs = waiting[: self.window]
            sizes = {state.jobs[job].workers for job in jobs}
            at = {workers: _levels(room, workers) for workers in sizes}
            grants = [grant for job in jobs for grant in at[state.jobs[job].workers]]
            mask = np.array([grant is not None for grant in grants] + [bool(state.running or start)])
            if not mask[:-1].any():
                break
            actions = _features(state, room, jobs, grants, len(waiting))
            action = scorer.choose(actions, mask, memory.draws if memory else None)
            if memory:
                memory.steps.append(Step(actions, mask, action, state.now))
            if action == len(grants):
                break
            job, grant = jobs[action // LEVELS], grants[action]
            assert grant is not None  # it is not masked
            room.take(state.jobs[job], grant)
            start[job] = grant
            waiting.remove(job)
        return Decision.changing(state.running, start), memory


def _levels(room: Room, workers: int) -> list[Grant | None]:
    """Return slots for a gang at each level; at looser ones only where they differ from those at the level before."""
    found: list[Grant | None] = []
    for level in range(LEVELS):
        grant = local(room, workers, level) if room.gpus >= workers else None
        found.append(None if grant is not None and grant in found else grant)
    return found


def _features(state: State, room: Room, jobs: Sequence[int], grants: Sequence[Grant | None], queued: int) -> np.ndarray:
    """Return what the network sees of every action; the last is to wait."""
    whole = room.whole[room.whole > 0]
    pieces = 1 - float(whole.max()) / room.gpus if room.gpus else 0.0
    common = [room.gpus / state.cluster.gpus, pieces, math.log1p(queued) / 5]
    left = {job: max(state.remaining(job).value, 1.0) for job in jobs}
    best = {
        job: max(
            (_speed(state, job, grant) for grant in grants[LEVELS * i : LEVELS * (i + 1)] if grant is not None),
            default=1.0,
        )
        for i, job in enumerate(jobs)
    }
    fitting = [job for i, job in enumerate(jobs) if any(g is not None for g in grants[LEVELS * i : LEVELS * (i + 1)])]
    shortest = min((left[job] for job in fitting), default=1.0)
    rows = np.zeros((len(grants) + 1, FEATURES))
    for i, grant in enumerate(grants):
        if grant is None:
            continue
        job, level = jobs[i // LEVELS], i % LEVELS
        about, speed = state.jobs[job], _speed(state, job, grant)
        rows[i] = [
            *common, 0.0, math.log2(about.workers) / 4, math.log1p(state.now - about.arrival) / 10,
            math.log(left[job]) / 10, math.log(left[job] * about.workers) / 10, speed, speed / best[job],
            math.log(left[job] / shortest) / 5, *(float(level == k) for k in range(LEVELS)), (i // LEVELS) / len(jobs),
        ]  # fmt: skip
    rows[-1, :4] = [*common, 1.0]
    return rows


def _speed(state: State, job: int, grant: Grant) -> float:
    return state.jobs[job].progress.rate(0.0, grant, state.cluster, ()).speed


def train(
    traces: Sequence[Sequence[Job]], cluster: Cluster, iterations: int = 40, rollouts: int = 4, seed: int = 0
) -> Sched2:
    """Return the policy that has learned on traces, to be used on others: first to start what fits, as it does without
    weights, then to do better.

    - `traces`: of jobs; each iteration plays one of them.
    - `cluster`: whose GPUs they share.
    - `iterations`: steps of the learner.
    - `rollouts`: times that a trace is played in each.
    - `seed`: of weights and exploration.
    """

    def play(scorer: Scorer, iteration: int) -> list[Episode]:
        policy, jobs = Sched2(scorer.weights), traces[iteration % len(traces)]
        first = seed + 1000 * iteration
        return [_episode(jobs, cluster, replace(policy, seed=first + i)) for i in range(rollouts)]

    first_fit = [step for jobs in traces[:4] for step in _episode(jobs, cluster, Sched2()).steps]
    return Sched2(improve(imitate(fresh(FEATURES, seed), first_fit), play, iterations, rate=0.03).weights)


def _episode(jobs: Sequence[Job], cluster: Cluster, policy: Sched2) -> Episode:
    """Play a trace once. The reward between two decisions is minus the seconds that jobs spend unfinished."""
    notes = Notes.of(policy.seed)
    outcome = replay(jobs, cluster, Noted(policy, notes))
    steps = notes.steps
    arrivals, completed = outcome.arrivals[:, None], outcome.completed[:, None]
    times = np.array([step.time for step in steps])
    ahead = np.maximum(completed - np.maximum(arrivals, times[None, :]), 0.0)
    return Episode(steps, (-ahead.sum(axis=0)).tolist())
