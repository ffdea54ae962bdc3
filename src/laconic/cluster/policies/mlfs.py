"""MLFS: jobs by what they do for their loss and by their times; and a network that learns to decide as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.learned.learner import imitate, improve
from laconic.cluster.learned.notes import Noted, Notes
from laconic.cluster.learned.scorer import Episode, Scorer, Step, fresh
from laconic.cluster.learned.task_priority import Weights, learning, times
from laconic.cluster.learned.task_servers import nearest
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique

DAY = 86400.0
"""Seconds of the unit in which times are counted."""
FEATURES = 8
REWARDS = {"completion": 0.5, "deadline": 0.55}
"""The weights of the two goals that replays of jobs without accuracies and traffic have."""
_PICKS = 3  # of a decision that the learner sees: later ones matter little


@technique("mlfs", paper="Wang, Liu, Shen, CoNEXT 2020")
@dataclass(frozen=True)
class Mlfs(Policy):
    """Whoever has the highest priority runs: the loss is expected to fall most by it, its deadline is near, little is
    left of it, or it has waited for long (MLF-H). Each worker goes to the server nearest to an ideal one, on which
    every resource is used least and with whose tasks it exchanges most. Those that fall out are preempted, as tasks of
    an iteration queue again after it.

    All workers of a gang are equal partitions of its model, so the gang has the priority of each of them
    (`laconic.cluster.learned.task_priority`, which has graphs of tasks, too). Iterations are counted as minutes of
    work, and a loss falls as one over their number where nothing is reported. A deadline that has passed presses no
    more. The paper's unit of time is not established, and the priority depends on it: with days, waiting weighs little
    against what is left of a job of hours; with hours it outweighs it, and of two weeks of Philly 107 and 298 deadlines
    were missed instead of 29 and 5.

    With weights a network orders the jobs (MLF-RL): `train` lets it imitate these decisions, then improve on them by
    policy gradients. Servers of tasks that use several resources are relieved by
    `laconic.cluster.learned.task_servers`; jobs are stopped early by `laconic.cluster.learned.early_stop` (MLF-C).
    """

    learning: float = knob(0.3, low=0, high=1, doc="how much the loss counts, against deadlines, work left and waiting")
    weights: tuple[float, ...] = knob((), doc="of a network that orders the jobs, as `train` returns them")
    seed: int | None = knob(None, doc="of the random numbers by which the network explores; none: it does not")

    def init(self) -> Notes | None:
        return None if self.seed is None else Notes.of(self.seed)

    def decide(self, state: State, events: Sequence[Event], memory: Notes | None) -> tuple[Decision, Notes | None]:
        del events
        jobs = list(state.active)
        if not jobs:
            return Decision.changing(state.running, {}), memory
        seen = np.array([self._features(state, job) for job in jobs])
        if self.weights:
            scores = Scorer(FEATURES, self.weights).scores(seen, np.ones(len(jobs), dtype=bool))
        else:
            scores = seen[:, 0]
        if memory and memory.draws is not None:
            scores = scores + memory.draws.gumbel(size=len(jobs))
        order = np.argsort(-scores, kind="stable")
        if memory and sum(state.jobs[job].workers for job in jobs) > state.cluster.gpus:  # who is first matters
            mask = np.ones(len(jobs), dtype=bool)
            for pick in order[:_PICKS].tolist():
                memory.steps.append(Step(seen, mask.copy(), pick, state.now))
                mask[pick] = False
        return run_in_order(state, [jobs[i] for i in order], nearest_servers), memory

    def _features(self, state: State, job: int) -> list[float]:
        """Return what is seen of a job: its priority, and what it is made of."""
        about, weights = state.jobs[job], Weights(learning=self.learning)
        left, remaining = (about.deadline - state.now) / DAY, state.remaining(job).value / DAY
        waiting = (state.now - about.arrival - float(state.executed(job))) / DAY
        iteration = 1 + float(state.done(job)) // 60
        latest = 1.0 if iteration < 2 else (iteration - 1) ** -2
        loss = learning(about.weight / iteration, (), latest / about.workers)
        pressing = times(left, remaining, waiting, weights)
        total = self.learning * loss + (1 - self.learning) * pressing
        return [
            total / 5, float(left > 0), float(np.log(max(remaining, 1 / 1440))) / 5, float(np.log2(about.workers)) / 4,
            float(np.log1p(max(waiting, 0.0))) / 3, float(np.clip(left - remaining, -1, 1)), loss,
            float(job in state.running),
        ]  # fmt: skip


def nearest_servers(room: Room, workers: int) -> Grant | None:
    """Return whole devices for a gang, one worker after another, each on the server nearest to an ideal one.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    """
    if room.gpus < workers:
        return None
    hosts = room.cluster.hosts
    gpus = np.array([max(host.gpus, 1) for host in hosts])
    free, placed, slots = room.whole.astype(float), np.zeros(len(hosts)), list[Slot]()
    for _ in range(workers):
        loads = np.where(free >= 1, 0.9 * (1 - free / gpus), 1.0)[:, None]
        host = nearest(loads, placed / max(workers - 1, 1), np.zeros(len(hosts)))
        assert host is not None  # there are enough
        device = int(np.flatnonzero(room.free[host] >= ALMOST)[int(placed[host])])
        slots.append(Slot(host, device))
        free[host] -= 1
        placed[host] += 1
    return Grant.of(slots)


def train(
    traces: Sequence[Sequence[Job]], cluster: Cluster, iterations: int = 10, rollouts: int = 3, seed: int = 0
) -> Mlfs:
    """Return the policy whose network has learned: first to decide as MLF-H does, then by rewards.

    - `traces`: of jobs; each iteration plays one of them.
    - `cluster`: whose GPUs they share.
    - `iterations`: steps of policy gradients; 0: it only imitates.
    - `rollouts`: times that a trace is played in each.
    - `seed`: of weights and exploration.
    """

    def play(scorer: Scorer, iteration: int) -> list[Episode]:
        policy, first = Mlfs(weights=scorer.weights), seed + 1000 * iteration
        jobs = traces[iteration % len(traces)]
        return [episode(jobs, cluster, replace(policy, seed=first + i)) for i in range(rollouts)]

    shown = [step for jobs in traces[:4] for step in episode(jobs, cluster, Mlfs()).steps]
    return Mlfs(weights=improve(imitate(fresh(FEATURES, seed), shown, 200), play, iterations, rate=0.003).weights)


def episode(jobs: Sequence[Job], cluster: Cluster, policy: Mlfs) -> Episode:
    """Play a trace once, and return its decisions with what came of each: jobs that end sooner, and in time.

    - `jobs`: the trace.
    - `cluster`: whose GPUs they share.
    - `policy`: which decides.
    """
    notes = Notes.of(policy.seed)
    outcome = replay(jobs, cluster, Noted(policy, notes), Costs(restart=30.0))
    times_ = np.array([step.time for step in notes.steps])[None, :]
    completed, count = outcome.completed[:, None], len(outcome.jobs)
    deadlines = np.array([job.deadline for job in outcome.jobs])[:, None]
    ahead = np.maximum(completed - np.maximum(outcome.arrivals[:, None], times_), 0.0).sum(axis=0)
    met = ((completed <= deadlines) & (completed > times_)).sum(axis=0)
    scale = float(np.mean([job.progress.work for job in outcome.jobs])) * count
    returns = -REWARDS["completion"] * ahead / scale + REWARDS["deadline"] * met / count
    return Episode(notes.steps, returns.tolist())
