"""Jobs that compute and send by turns over one switch, under a rule that gives rates to their flows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ClusterError
from laconic.network.flow import Flow

_NOTHING = 1e-9  # of a flow's bytes, and of a second


@dataclass(frozen=True)
class FlowJob:
    """A job of equal iterations: each computes and then sends a coflow, which ends with its last flow.

    - `name`: what tells it from others.
    - `arrival`: when it begins, in seconds.
    - `coflow`: what an iteration sends, from which host to which.
    - `iterations`: how many.
    - `compute_seconds`: what each takes before it sends.
    - `stage`: the set of jobs that are waited for together, if any.
    """

    name: str
    arrival: float
    coflow: Flow
    iterations: int = 1
    compute_seconds: float = 0.0
    stage: str = ""

    def __post_init__(self) -> None:
        if not len(self.coflow.nbytes) or self.coflow.nbytes.min() <= 0 or self.iterations < 1:
            raise ClusterError(f"{self.name} sends nothing; give it flows with bytes, and at least one iteration")


@dataclass(frozen=True)
class Traffic:
    """What a rule sees. Arrays over flows are of those that are sent now; those over jobs are by their numbers.

    - `now`: the time.
    - `jobs`: all jobs.
    - `room`: bytes a second of every port: those out of hosts, then those into hosts.
    - `owner`: of each flow, its job.
    - `ports`: of each flow, its two ports.
    - `left`: of each flow, its bytes.
    - `sent`: of each job, the bytes of all its coflows so far.
    - `sent_of_coflow`: the same of the coflow that it sends now.
    - `begun`: of each job, the coflows that it has begun.
    - `unfinished`: the jobs that have arrived and are not done.
    """

    now: float
    jobs: Sequence[FlowJob]
    room: NDArray[np.float64]
    owner: NDArray[np.int64]
    ports: NDArray[np.int64]
    left: NDArray[np.float64]
    sent: NDArray[np.float64]
    sent_of_coflow: NDArray[np.float64]
    begun: NDArray[np.int64]
    unfinished: Sequence[int]

    @property
    def loads(self) -> NDArray[np.float64]:
        """What each flow loads each port with, at a rate of 1."""
        found = np.zeros((len(self.owner), len(self.room)))
        rows = np.arange(len(self.owner))
        found[rows, self.ports[:, 0]] = found[rows, self.ports[:, 1]] = 1.0
        return found

    def remaining_bytes(self, job: int) -> NDArray[np.float64]:
        """Return what a job has still to send through each port in all of its iterations.

        - `job`: its number.
        """
        coflow, hosts = self.jobs[job].coflow, len(self.room) // 2
        ahead = self.jobs[job].iterations - int(self.begun[job])
        found: NDArray[Any] = float(ahead) * (
            np.bincount(coflow.sources, coflow.nbytes, 2 * hosts)
            + np.bincount(coflow.destinations + hosts, coflow.nbytes, 2 * hosts)
        )
        mine = self.owner == job
        for side in (0, 1):
            found += np.bincount(self.ports[mine, side], self.left[mine], 2 * hosts)
        return found


class Rates(NamedTuple):
    """What a rule decides.

    - `values`: bytes a second of each flow.
    - `until`: when it wants to decide again, if nothing begins or ends before.
    """

    values: NDArray[np.float64]
    until: float = math.inf


Rule = Callable[[Traffic, Any], tuple[Rates, Any]]
"""Rates for what is sent now, and what to remember: None at first."""


class Sent(NamedTuple):
    """What came of it, by job: when each was done; and the seconds from its arrival to that."""

    completed: NDArray[np.float64]
    seconds: NDArray[np.float64]


def send_all(jobs: Sequence[FlowJob], hosts: int, bytes_per_second: float, rule: Rule) -> Sent:
    """Let jobs run over a switch that never blocks, of whose ports every host has one in and one out.

    - `jobs`: the jobs, which are numbered in the order of their arrivals.
    - `hosts`: how many.
    - `bytes_per_second`: of each port.
    - `rule`: who decides on rates, whenever a flow begins or ends.
    """
    jobs = sorted(jobs, key=lambda job: job.arrival)
    count = len(jobs)
    room = np.full(2 * hosts, float(bytes_per_second))
    sent, of_coflow = np.zeros(count), np.zeros(count)
    begun = np.zeros(count, dtype=np.int64)
    completed = np.full(count, np.nan)
    begins = {number: job.arrival + job.compute_seconds for number, job in enumerate(jobs)}  # of coflows to come
    owner, ports = np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64)
    left, memory, now = np.zeros(0), None, 0.0
    while begins or len(left):
        values, until = np.zeros(0), math.inf
        if len(left):
            there = [n for n in range(count) if jobs[n].arrival <= now and math.isnan(completed[n])]
            traffic = Traffic(now, jobs, room, owner, ports, left, sent, of_coflow, begun, there)
            (values, until), memory = rule(traffic, memory)
            _check(values, traffic)
        with np.errstate(divide="ignore"):
            ends = now + float((left / values).min()) if len(left) else math.inf
        then = min(ends, until, min(begins.values(), default=math.inf))
        if then == math.inf:
            raise ClusterError("a rule leaves all flows waiting for ever; give at least one of them a rate")
        moved = np.minimum(values * max(then - now, 0.0), left)
        left = left - moved
        gained = np.bincount(owner, moved, count)
        sent, of_coflow, now = sent + gained, of_coflow + gained, then
        kept = left > _NOTHING * np.maximum(values, 1.0)
        if not kept.all():
            over = set(owner[~kept].tolist()) - set(owner[kept].tolist())
            owner, ports, left = owner[kept], ports[kept], left[kept]
            for number in sorted(over):
                if begun[number] == jobs[number].iterations:
                    completed[number] = now
                else:
                    begins[number] = now + jobs[number].compute_seconds
        for number in sorted(n for n, time in begins.items() if time <= now):
            del begins[number]
            coflow = jobs[number].coflow
            begun[number] += 1
            of_coflow[number] = 0.0
            owner = np.concatenate([owner, np.full(len(coflow.nbytes), number)])
            ports = np.vstack([ports, np.column_stack([coflow.sources, coflow.destinations + hosts])])
            left = np.concatenate([left, coflow.nbytes])
    return Sent(completed, completed - np.array([job.arrival for job in jobs]))


def _check(values: NDArray[np.float64], traffic: Traffic) -> None:
    """Refuse rates that a port cannot carry."""
    load = np.bincount(traffic.ports.ravel(), np.repeat(values, 2), len(traffic.room))
    if np.any(load > traffic.room * (1 + 1e-6)) or np.any(values < 0):
        raise ClusterError("a rule gives a port more than it carries, or a rate below 0")
