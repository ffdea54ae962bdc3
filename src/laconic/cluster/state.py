"""What a policy sees: the jobs that are there, what runs, what is free, and what happened since it was asked last."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.active import Active
from laconic.cluster.compiled import grown, remaining
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.room import Room


class Arrival(NamedTuple):
    """A job was submitted."""

    job: int


class Completion(NamedTuple):
    """A job has done its work; what it held is free."""

    job: int


class Advanced(NamedTuple):
    """A job has come to a point at which its rate changes, such as the end of an epoch."""

    job: int


class HostLost(NamedTuple):
    """A host is gone; the jobs on it have stopped, and continue from their last checkpoint when they are placed."""

    host: int
    jobs: tuple[int, ...]


class HostBack(NamedTuple):
    """A host is there again, or for the first time."""

    host: int


class Wake(NamedTuple):
    """The time has come for which the policy had asked."""


Event = Arrival | Completion | Advanced | HostLost | HostBack | Wake


class Estimate(NamedTuple):
    """A number that may be wrong, with whose it is and when it was made."""

    value: float
    source: str
    at: float


Numbers = TypeVar("Numbers", int, np.ndarray)


def one_by_one(numbers: np.ndarray) -> Any:
    """Return the same numbers for who reads or writes one of them: twice as fast as an array is at that.

    - `numbers`: the array, which has the same memory.
    """
    return memoryview(numbers)  # type: ignore[arg-type]


class One(NamedTuple):
    """The columns of `Tables` for who reads or writes what is known of one job."""

    since: memoryview[float]
    base: memoryview[float]
    speed: memoryview[float]
    held: memoryview[float]
    attained: memoryview[float]
    executed: memoryview[float]
    first_start: memoryview[float]
    restarts: memoryview[int]


class Tables:
    """What is known of every job, by its number: where it was when its rate changed last, and its rate since."""

    def __init__(self, jobs: int) -> None:
        self.since = np.zeros(jobs)
        self.base = np.zeros(jobs)  # work that was done then
        self.speed = np.zeros(jobs)
        self.held = np.zeros(jobs)  # GPUs
        self.attained = np.zeros(jobs)
        self.executed = np.zeros(jobs)
        self.first_start = np.full(jobs, np.nan)
        self.restarts = np.zeros(jobs, dtype=np.int64)
        self.one = One(*(one_by_one(getattr(self, name)) for name in One._fields))
        # what jobs ask for and are estimated to do, once somebody wants to know, and the lists that this was read from
        self.workers, self.gpus, self.works = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
        self.jobs: Sequence[Job] = ()
        self.estimates: Sequence[Estimate] = ()


class State(NamedTuple):
    """A cluster at one moment, which is not to be written to.

    - `now`: the time, in seconds.
    - `cluster`: the hosts.
    - `jobs`: all jobs, by number; a policy looks at those that are active.
    - `active`: the numbers of those that were submitted and are not done, in the order of their arrivals.
    - `running`: what each running job holds.
    - `room`: what is free; a policy tries things out on a copy of it.
    - `estimates`: of the whole work of each job, by number.
    - `tables`: what the methods below read.
    """

    now: float
    cluster: Cluster
    jobs: Sequence[Job]
    active: Collection[int]
    running: Mapping[int, Grant]
    room: Room
    estimates: Sequence[Estimate]
    tables: Tables

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of the active jobs as an array."""
        if isinstance(self.active, Active):
            return self.active.as_array()
        return np.fromiter(self.active, np.int64, len(self.active))

    @property
    def waiting(self) -> list[int]:
        """The numbers of the jobs that do not run, in the order of their arrivals."""
        return sorted(set(self.active).difference(self.running))  # jobs are numbered in the order of their arrivals

    def done(self, job: Numbers) -> Any:
        """Return the work that a job has done, or that each of many has.

        - `job`: its number, or theirs.
        """
        known = self.tables
        if isinstance(job, np.ndarray):
            return self._grown(job, known.base, known.speed)
        return known.one.base[job] + known.one.speed[job] * (self.now - known.one.since[job])

    def speed(self, job: Numbers) -> Any:
        """Return the work a second that a job does now, or that each of many does; 0 while it is placed.

        - `job`: its number, or theirs.
        """
        return self.tables.speed[job]

    def attained(self, job: Numbers) -> Any:
        """Return the GPU-seconds that a job has held, or that each of many has.

        - `job`: its number, or theirs.
        """
        known = self.tables
        if isinstance(job, np.ndarray):
            return self._grown(job, known.attained, known.held)
        return known.one.attained[job] + known.one.held[job] * (self.now - known.one.since[job])

    def _grown(self, jobs: np.ndarray, amounts: np.ndarray, rates: np.ndarray) -> np.ndarray:
        found = np.empty(len(jobs))
        grown(jobs, amounts, rates, self.tables.since, self.now, found)
        return found

    def executed(self, job: Numbers) -> Any:
        """Return the seconds for which a job has held GPUs, or each of many has.

        - `job`: its number, or theirs.
        """
        known = self.tables
        return known.executed[job] + (known.held[job] > 0) * (self.now - known.since[job])

    def workers(self) -> NDArray[np.int64]:
        """Return how many workers the gang of each job has, by number."""
        return self._read_jobs().workers

    def gpus(self) -> NDArray[np.float64]:
        """Return how many GPUs each job asks for, by number."""
        return self._read_jobs().gpus

    def _read_jobs(self) -> Tables:
        known, jobs = self.tables, self.jobs
        if known.jobs is not jobs:
            known.jobs, known.workers = jobs, np.array([job.workers for job in jobs], dtype=np.int64)
            known.gpus = np.array([job.gpus for job in jobs], dtype=np.float64)
        return known

    def left(self, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the estimated work that each of many jobs has still to do.

        - `jobs`: their numbers.
        """
        known = self.tables
        if known.estimates is not self.estimates:
            known.estimates, known.works = self.estimates, np.array([whole.value for whole in self.estimates])
        found = np.empty(len(jobs))
        remaining(jobs, known.works, known.base, known.speed, known.since, self.now, found)
        return found

    def has_started(self, job: int) -> bool:
        """Tell whether a job has run before or runs.

        - `job`: its number.
        """
        return not math.isnan(self.tables.first_start[job])

    def remaining(self, job: int) -> Estimate:
        """Return the estimated work that a job has still to do.

        - `job`: its number.
        """
        whole = self.estimates[job]
        return whole._replace(value=max(whole.value - float(self.done(job)), 0.0))
