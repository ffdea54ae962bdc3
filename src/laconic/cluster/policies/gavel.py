"""Shares of time on GPUs of different types, given in rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.policy import Policy
from laconic.cluster.shares import objectives
from laconic.cluster.shares.problem import Shared
from laconic.cluster.state import Arrival, Completion, Event, HostBack, HostLost, State
from laconic.registry import knob, technique

ROUND = 360.0
"""Seconds for which a job keeps its GPUs."""
RESET = 1920.0
"""Seconds that pass at least before shares are found anew."""
HEAD_START = ROUND / 2
"""Seconds that each job counts as having been on each type when shares are new, so that no priority is infinite."""


class _Rounds:
    """What the policy remembers. Tables are by the number of a job and a type of GPU."""

    def __init__(self, jobs: int, cluster: Cluster, seed: int) -> None:
        self.types = list(dict.fromkeys(host.gpu for host in cluster.hosts))
        self.slots: list[list[Slot]] = [
            [Slot(h, d) for h, host in enumerate(cluster.hosts) if host.gpu == gpu for d in range(host.gpus)]
            for gpu in self.types
        ]
        self.type_of = np.array([self.types.index(host.gpu) for host in cluster.hosts])
        shape = (jobs, len(self.types))
        self.speeds, self.shares, self.late = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.time = np.full(shape, HEAD_START)
        self.all_time = np.zeros(len(self.types))
        self.executed = np.zeros(jobs)  # at the last decision
        self.ran: list[int] = []  # jobs that it started or left running, and on which types
        self.ran_on: list[int] = []
        self.alone = np.zeros(jobs)  # seconds that its work so far would have taken in an equal part of the cluster
        self.is_stale, self.renewed = True, 0.0
        self.shuffled = random.Random(seed)
        self.one: dict[Slot, Grant] = {}  # of a GPU alone; what a grant has worked out of its slots is kept with it

    def gpus(self, state: State) -> list[int]:
        """How many GPUs of each type are there."""
        if not state.room.lost:
            return [len(slots) for slots in self.slots]
        return [sum(slot.host not in state.room.lost for slot in slots) for slots in self.slots]


@technique(
    "gavel",
    paper="Narayanan et al., OSDI 2020",
    evidence="published",
    reproduces="mean completion by least attained service on 36 V100, 36 P100 and 36 K80 at four jobs an hour, three "
    "seeds, ± 5 %: 23.49 h where speeds are not known, 16.82 h where they are",
    formula="max min_m s_m Σ_j T_mj X_mj / (w_m Σ_j T_mj N_j / N) where Σ_j X_mj ≤ 1 and Σ_m s_m X_mj ≤ N_j",
)
@dataclass(frozen=True)
class Gavel(Policy):
    """Each job is to be on each type of GPU for a share of the time, which linear programs find from its speeds there
    (`shares.objectives`); rounds of six minutes give it these, first to whoever is furthest behind its share.

    Shares are found anew when jobs have come or gone, but not within 1,920 s; who came since waits. A job of several
    workers is on one type. GPUs that nobody with a share of them can use are given to others, so that some get more
    than their shares, the more so the larger gangs are beside the cluster. The authors' simulator fills one type after
    the other, in the order in which the cluster has them (begin it with the fastest) or, where speeds are not known, at
    random; that is `queue="by_type"`, by which their figures are met. So filled, who does not know speeds is saturated
    at 4.8 jobs of one GPU an hour on 36 GPUs of each of three types: the 4,000th to the 5,000th take 1.77 times as long
    as where speeds are known, in the mean of six draws that have 1.35 to 2.39, and longer in longer traces. At 4.5 an
    hour it is 1.36 times; the paper has up to 3.5. With one queue they take 1.34 to 1.45 times as long, at 5 to 7.5
    arrivals an hour (five draws of 500 to 2,200 jobs).
    """

    every = ROUND
    objective: str = knob(
        "las",
        choices=("las", "makespan", "fifo", "finish_time_fairness"),
        doc="the least service, the last end, the order of arrivals or the worst delay beside an equal part",
    )
    aware: bool = knob(True, doc="whether it knows how fast jobs are on each type")
    queue: str = knob(
        "global", choices=("global", "by_type"), doc="one queue for all types, or one type after the other"
    )
    seed: int = knob(0, low=0, doc="of the order of types, where it is unaware")

    def init(self) -> _Rounds | None:
        return None

    def decide(self, state: State, events: Sequence[Event], memory: _Rounds | None) -> tuple[Decision, _Rounds | None]:
        rounds = memory or _Rounds(len(state.jobs), state.cluster, self.seed + 5)
        self._count(state, rounds)
        for event in events:
            if isinstance(event, Arrival):
                rounds.speeds[event.job] = _speeds(state.jobs[event.job], rounds, state.cluster)
            if isinstance(event, Arrival | Completion | HostLost | HostBack):
                rounds.is_stale = True
        jobs = np.fromiter(state.active, np.int64, len(state.active))
        if rounds.is_stale and (state.now - rounds.renewed >= RESET or not rounds.renewed):
            self._renew(state, rounds, jobs)
        chosen = self._chosen(state, rounds, jobs)
        grants = _placed(state, rounds, chosen)
        rounds.ran = list(grants)
        rounds.ran_on = [int(rounds.type_of[grant.slots[0].host]) for grant in grants.values()]
        rounds.executed[rounds.ran] = state.executed(np.array(rounds.ran, np.int64))
        return Decision(grants), rounds

    def _count(self, state: State, rounds: _Rounds) -> None:
        """Count the time of the last round."""
        ran, types = np.array(rounds.ran, np.int64), np.array(rounds.ran_on, np.int64)
        seconds = state.executed(ran) - rounds.executed[ran]
        rounds.time[ran, types] += seconds
        np.add.at(rounds.all_time, types, seconds)
        work = seconds * rounds.speeds[ran, types]
        rounds.alone[ran] += work / np.maximum(rounds.speeds[ran] @ _equal(rounds), 1e-300)

    def _renew(self, state: State, rounds: _Rounds, jobs: np.ndarray) -> None:
        """Find shares, after what each job is behind its old ones has been noted."""
        rounds.late[jobs] += rounds.shares[jobs] * (state.now - rounds.renewed) - (rounds.time[jobs] - HEAD_START)
        rounds.time[jobs] = HEAD_START
        rounds.all_time[:] = HEAD_START * len(jobs)
        rounds.renewed, rounds.is_stale = state.now, False
        gpus = np.array(rounds.gpus(state), float)
        facts = [state.jobs[job] for job in jobs]
        problem = Shared(
            rounds.speeds[jobs], np.array([job.workers for job in facts], float),
            np.array([job.weight for job in facts]), gpus,
        )  # fmt: skip
        remaining = np.array([state.remaining(int(job)).value for job in jobs])
        solve = objectives.least_attained_service
        if self.objective == "makespan":
            solve = partial(objectives.makespan, remaining=remaining)
        elif self.objective == "fifo":
            solve = objectives.first_come
        elif self.objective == "finish_time_fairness":
            elapsed = state.now - np.array([job.arrival for job in facts])
            solve = partial(
                objectives.finish_time_fairness, remaining=remaining, elapsed=elapsed, alone=rounds.alone[jobs]
            )
        rounds.shares[jobs] = solve(problem) if self.aware else objectives.blindly(solve, problem)

    def _chosen(self, state: State, rounds: _Rounds, jobs: np.ndarray) -> dict[int, int]:
        """Return who runs on which type: first who is furthest behind its share there, at last who has none and was
        there least."""
        shares, late, time = rounds.shares[jobs], rounds.late[jobs], rounds.time[jobs]
        priority = np.where(shares > 0, shares * rounds.all_time / time, 0.0)
        kinds = len(rounds.types)
        if self.queue == "global":
            order = np.lexsort((time.ravel(), -shares.ravel(), -late.ravel(), -priority.ravel())).tolist()
        else:
            filled = list(range(kinds))
            if not self.aware:
                rounds.shuffled.shuffle(filled)
            keys = (time, -shares, -late, -priority)
            order = np.concatenate([np.lexsort([x[:, k] for x in keys]) * kinds + k for k in filled]).tolist()
        left = rounds.gpus(state)
        able = (rounds.speeds[jobs] > 0) & shares.any(axis=1)[:, None]  # who has no shares yet waits for them
        numbers, workers = jobs.tolist(), [state.jobs[job].workers for job in jobs.tolist()]
        chosen: dict[int, int] = {}
        for place in order:
            i, kind = divmod(place, kinds)
            if workers[i] <= left[kind] and able[i, kind] and numbers[i] not in chosen:
                left[kind] -= workers[i]
                chosen[numbers[i]] = kind
                if not any(left):
                    break
        return chosen


def _equal(rounds: _Rounds) -> np.ndarray:
    counts = np.array([len(slots) for slots in rounds.slots], float)
    split: np.ndarray = counts / counts.sum()
    return split


def _speeds(job: Job, rounds: _Rounds, cluster: Cluster) -> list[float]:
    """Return a job's speed on as many GPUs as it asks for of each type, 0 where it cannot run."""
    found = []
    for gpu, slots in zip(rounds.types, rounds.slots, strict=True):
        can = len(slots) >= job.workers and (not job.gpu_types or gpu in job.gpu_types)
        found.append(job.progress.rate(0.0, Grant(tuple(slots[: job.workers])), cluster, ()).speed if can else 0.0)
    return found


def _placed(state: State, rounds: _Rounds, chosen: dict[int, int]) -> dict[int, Grant]:
    """Return GPUs for who was chosen: those held where the type stays, else free ones, for the largest gangs first."""
    grants: dict[int, Grant] = {}
    used: set[Slot] = set()
    rest: list[tuple[int, int]] = []
    for job, kind in chosen.items():
        held = state.running.get(job)
        if held is not None and rounds.type_of[held.slots[0].host] == kind:
            grants[job] = held
            used.update(held.slots)
        else:
            rest.append((job, kind))
    free = [
        iter([slot for slot in slots if slot not in used and slot.host not in state.room.lost])
        for slots in rounds.slots
    ]
    for job, kind in sorted(rest, key=lambda pair: -state.jobs[pair[0]].workers):
        grants[job] = _grant(rounds, tuple(next(free[kind]) for _ in range(state.jobs[job].workers)))
    return grants


def _grant(rounds: _Rounds, slots: tuple[Slot, ...]) -> Grant:
    if len(slots) > 1:
        return Grant(slots)
    if slots[0] not in rounds.one:
        rounds.one[slots[0]] = Grant(slots)
    return rounds.one[slots[0]]
