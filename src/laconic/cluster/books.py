"""What every driver keeps of its jobs: where each is, what it holds, what is free, and where its time went."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from laconic.cluster.active import Active
from laconic.cluster.decision import Changes, check
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.outcome import PARTS, Logged, Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.room import Room
from laconic.cluster.state import Estimate, State, Tables, one_by_one
from laconic.errors import ClusterError

WAITING, PLACING, COMPUTING, COMMUNICATING, STALLED = range(len(PARTS))


class Books:
    """The accounts of a run. A driver says what happens and when; a time is never before the one said last.

    - `jobs`: all jobs, by number, in the order of their arrivals.
    - `cluster`: the hosts.
    - `estimates`: of the work of every job, as policies see it; default: the true work.
    """

    def __init__(self, jobs: Sequence[Job], cluster: Cluster, estimates: Sequence[Estimate] | None = None) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.estimates = estimates or [Estimate(job.progress.work, "true", 0.0) for job in jobs]
        self.known = Tables(len(jobs))
        self.parts = np.zeros((len(PARTS), len(jobs)))
        self._parts = [one_by_one(part) for part in self.parts]
        self.completed = np.full(len(jobs), np.nan)
        self.room = Room(cluster)
        self.active = Active()
        self.running: dict[int, Grant] = {}
        self.communicating: dict[int, float] = {}  # of jobs that compute; absent while a job is placed

    def state(self, now: float) -> State:
        """Return what a policy sees."""
        return State(now, self.cluster, self.jobs, self.active, self.running, self.room, self.estimates, self.known)

    def verified(self, changes: Changes, policy: Policy) -> tuple[list[tuple[int, Grant]], list[tuple[int, Grant]]]:
        """Refuse changes that cannot be carried out, and let what is free be as it is after them. Of those who go on
        with something else, return who has to move, and who only gets another batch, clock or share of the devices
        that it has.

        - `changes`: what is to be done.
        - `policy`: who wants it.
        """
        for job, _ in (*changes.start, *changes.resize):
            if job not in self.active:
                raise ClusterError(f"{policy} gives slots to job {job}, which is not there or is done")
        self.room = check(changes, self.running, self.jobs, self.room)
        moved: list[tuple[int, Grant]] = []
        tuned: list[tuple[int, Grant]] = []
        for job, grant in changes.resize:
            held = self.running[job]
            stays = grant.devices == held.devices and grant.circuits == held.circuits
            (tuned if stays else moved).append((job, grant))
        return moved, tuned

    def arrive(self, job: int) -> None:
        """Let a job come, at the time at which it was submitted."""
        self.known.one.since[job] = self.jobs[job].arrival
        self.active.add(job)

    def hold(self, job: int, grant: Grant, now: float) -> bool:
        """Let a job hold slots from now on, on which it is placed, as was verified; return whether it is the first
        time."""
        known = self.known.one
        self.settle(job, now)
        first = math.isnan(known.first_start[job])
        if first:
            known.first_start[job] = now
        else:
            known.restarts[job] += 1
        self.running[job] = grant
        known.held[job] = grant.gpus
        return first

    def retune(self, job: int, grant: Grant) -> Grant:
        """Give a job that was settled another batch, clock or share of the devices that it has, as was verified, and
        return what it held."""
        before, self.running[job] = self.running[job], grant
        self.known.held[job] = grant.gpus
        return before

    def proceed(self, job: int, rate: Rate) -> None:
        """Let a job that was settled compute at a rate from now on."""
        self.known.one.speed[job] = rate.speed
        self.communicating[job] = rate.communicating

    def settle(self, job: int, now: float) -> None:
        """Count a job's time and work up to now."""
        known = self.known.one
        since = known.since
        seconds = now - since[job]
        if seconds > 0:
            parts = self._parts
            if job not in self.running:
                parts[WAITING][job] += seconds
            else:
                known.executed[job] += seconds
                known.attained[job] += seconds * known.held[job]
                share = self.communicating.get(job)
                if share is None:
                    parts[PLACING][job] += seconds
                elif (speed := known.speed[job]) > 0:
                    known.base[job] += seconds * speed
                    parts[COMPUTING][job] += (1 - share) * seconds
                    if share:
                        parts[COMMUNICATING][job] += share * seconds
                else:
                    parts[STALLED][job] += seconds
        since[job] = now

    def release(self, job: int, verified: bool = False) -> Grant:
        """Take a job's slots from it, and return them; it has been settled.

        - `job`: its number.
        - `verified`: whether this was among changes that were verified: then they are free already.
        """
        grant = self.running.pop(job)
        if not verified:
            self.room.give(self.jobs[job], grant)
        known = self.known.one
        known.held[job] = known.speed[job] = 0.0
        self.communicating.pop(job, None)
        return grant

    def complete(self, job: int, now: float) -> None:
        """Note that a job that holds nothing any more is done."""
        self.active.remove(job)
        self.completed[job] = now

    def holders(self, host: int) -> tuple[int, ...]:
        """Return the jobs that hold something of a host."""
        return tuple(job for job, grant in self.running.items() if any(slot.host == host for slot in grant.slots))

    def outcome(self, decisions: int, log: list[Logged]) -> Outcome:
        """Return what came of it all.

        - `decisions`: how often the policy was asked.
        - `log`: its decisions, where they were kept.
        """
        known = self.known
        return Outcome(
            self.jobs, known.first_start, self.completed, self.parts, known.restarts, known.attained, decisions, log
        )
