"""Harmony: a network that has learned which jobs go well beside each other places batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.learned.scorer import Scorer
from laconic.cluster.learned.task_placement import Batch, Task, features_of, placed_by
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@technique("harmony", paper="Bao, Peng, Wu, INFOCOM 2019")
@dataclass(frozen=True)
class Harmony(Policy):
    """The first jobs of the queue are placed together, worker by worker: a network scores every pair of a job and a
    host that has a GPU free, by the kinds of jobs that are there, where the job's own workers are and what is free, and
    the best is taken until it chooses to be done. Jobs are not stopped or moved.

    `learned.actor_critic` trains the network: `fit_speeds` finds a model of speeds from placements that were run, which
    predicts the rewards of others, `train` lets the actor and a critic learn from these, and again from measured ones.
    Readings: parameter servers need no GPU and are beside the first worker, so that an action places a worker; the
    actor scores each action by its own features, with weights that all hosts share, in place of one output for each.
    Sizes of the networks and of the batch are ours.

    With the interference of pairs that Lucid's authors measured, four jobs on three hosts took 30 % less time than by
    load balancing and 2 to 6 % less than packed on the least loaded host; the best of all placements takes 11 % less
    than that. The paper reports 25 % against others on its cluster.
    """

    weights: tuple[float, ...] = knob((), doc="of the network; none: all actions are as good")
    kinds: tuple[str, ...] = knob((), doc="the kinds of jobs that the network knows, in its order")
    usual: float = knob(1.0, above=0, doc="the work of a usual job")
    batch: int = knob(4, low=1, doc="the jobs that are placed together at most")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        waiting = state.waiting[: self.batch]
        if not waiting or not state.room.gpus:
            return Decision.changing(state.running, {}), memory
        found = Batch(
            len(self.kinds), state.room.whole, [self._running(state, job) for job in state.running],
            [self._task(state, job) for job in waiting],
        )  # fmt: skip
        placed_by(found, Scorer(features_of(len(self.kinds)), self.weights))
        room, start = state.room.copy(), dict[int, Grant]()
        for job, counts in zip(waiting, found.placed, strict=True):
            if counts.any():
                start[job] = Grant.of(
                    Slot(host, device)
                    for host in np.flatnonzero(counts).tolist()
                    for device in np.flatnonzero(room.free[host] >= ALMOST)[: counts[host]].tolist()
                )
                room.take(state.jobs[job], start[job])
        return Decision.changing(state.running, start), memory

    def _task(self, state: State, job: int) -> Task:
        kind = state.jobs[job].kind
        if kind not in self.kinds:
            raise ClusterError(f'{state.jobs[job].name} is of the kind "{kind}", which harmony did not learn')
        work = max(state.remaining(job).value, 1e-9) / self.usual
        return Task(self.kinds.index(kind), state.jobs[job].workers, work)

    def _running(self, state: State, job: int) -> tuple[Task, np.ndarray]:
        counts = np.zeros(len(state.cluster.hosts), dtype=np.int64)
        for host, count in state.running[job].by_host:
            counts[host] = count
        return self._task(state, job), counts
