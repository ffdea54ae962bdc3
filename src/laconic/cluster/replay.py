"""The virtual driver: a policy on a cluster under a virtual clock, by discrete events."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from laconic.cluster.books import Books
from laconic.cluster.contention import Contention, Running
from laconic.cluster.decision import Changes, diff
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.journal import Journal
from laconic.cluster.outcome import Logged, Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.state import (
    Advanced,
    Arrival,
    Completion,
    Estimate,
    Event,
    HostBack,
    HostLost,
    Wake,
)
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Costs:
    """What starting and stopping takes, in seconds in which a job holds its GPUs and proceeds by nothing.

    - `start`: a job's first start.
    - `restart`: a later one, on other GPUs or after a preemption: saving, loading and starting together.
    - `checkpoint_every`: the seconds of computing between checkpoints, of which those since the last are lost with a
      host; 0: a job that loses a host begins where it was started last.
    - `doubling`: what a start takes more for each doubling of a job's workers.
    """

    start: float = 0.0
    restart: float = 0.0
    checkpoint_every: float = 0.0
    doubling: float = 0.0


@dataclass(frozen=True)
class Outage:
    """A host that is not there from one time to another.

    - `host`: its number.
    - `begin`, `end`: in seconds.
    """

    host: int
    begin: float
    end: float = math.inf


# What happens, in the order in which it counts where several things happen at once: the end of a segment, a host that
# is lost or back, and the end of a segment that was rounded down, which in truth is after what is decided now.
_SEGMENT, _LOST, _BACK, _LATE = range(4)


def replay(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy,
    costs: Costs | None = None,
    outages: Iterable[Outage] = (),
    estimates: Sequence[Estimate] | None = None,
    keep_log: bool = False,
    journal: Journal | None = None,
    contention: Contention | None = None,
) -> Outcome:
    """Run jobs on a cluster as a policy decides, and return what came of it.

    - `jobs`: the jobs, which are numbered in the order of their arrivals.
    - `cluster`: the hosts.
    - `policy`: who decides.
    - `costs`: of starting and stopping; default: none.
    - `outages`: of hosts.
    - `estimates`: of the work of every job, as policies see it; default: the true work.
    - `keep_log`: whether decisions are kept.
    - `journal`: where every decision is written with the state that it was made upon.
    - `contention`: how running jobs slow each other down; default: only where they share devices.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival)
    return _Replay(
        ordered, cluster, policy, costs or Costs(), tuple(outages), estimates, keep_log, journal, contention
    ).run()


class _Replay:
    def __init__(
        self,
        jobs: list[Job],
        cluster: Cluster,
        policy: Policy,
        costs: Costs,
        outages: tuple[Outage, ...],
        estimates: Sequence[Estimate] | None,
        keep_log: bool,
        journal: Journal | None,
        contention: Contention | None,
    ) -> None:
        self._jobs, self._cluster, self._policy, self._costs = jobs, cluster, policy, costs
        self._books = Books(jobs, cluster, estimates)
        self._base = self._books.known.one.base
        self._log: list[Logged] | None = [] if keep_log else None
        self._journal = journal
        self._until: dict[int, float] = {}  # work at which a running job's rate changes; absent while it is placed
        self._began: dict[int, tuple[float, float]] = {}  # when a run began to compute, and with how much work done
        self._versions = [0] * len(jobs)
        self._beside: dict[tuple[int, int], set[int]] = {}  # the jobs on devices that are shared
        self._contention, self._rates_are_old = contention, False
        self._heap: list[tuple[float, int, int, int]] = []
        for outage in outages:
            self._heap.append((outage.begin, _LOST, outage.host, 0))
            self._heap.append((outage.end, _BACK, outage.host, 0))
        heapq.heapify(self._heap)
        self._arrived, self._left, self._decisions = 0, len(jobs), 0
        self._arrival = jobs[0].arrival if jobs else math.inf  # the next
        self._now, self._wake, self._round = 0.0, math.inf, -math.inf

    def run(self) -> Outcome:
        memory, events = self._policy.init(), list[Event]()
        every = self._policy.every
        while self._left:
            self._now = self._next_time(bool(events), every)
            in_round = every is not None and not self._now % every and self._round < self._now
            self._happen(events, before_a_round=in_round)
            if every is not None and (not in_round or not self._books.active):
                continue
            self._round = self._now
            if not events and every is None:
                continue
            decision, memory = self._policy.decide(self._books.state(self._now), events, memory)
            self._decisions += 1
            if self._journal is not None:
                self._journal.decided(self._books, self._now, events, decision)
            changes = diff(self._books.running, decision)
            if changes:
                self._carry_out(changes)
            if self._log is not None and changes:
                self._log.append(Logged(self._now, tuple(events), changes))
            self._wake = math.inf if decision.wake is None else decision.wake
            if self._wake <= self._now:
                raise ClusterError(f"{self._policy} asks at {self._now:g} s to be woken at {self._wake:g} s")
            events = []
        return self._books.outcome(self._decisions, self._log or [])

    # ------------------------------------------------------------------------------------------ what happens

    def _next_time(self, undecided: bool, every: float | None) -> float:
        """Return when the next thing happens, or the next round begins."""
        soonest = min(self._heap[0][0] if self._heap else math.inf, self._arrival, self._wake)
        if every is not None and (undecided or self._books.active):
            soonest = min(soonest, (self._now // every + 1) * every)
        if soonest == math.inf:
            waiting = [self._jobs[job].name for job in self._books.active if job not in self._books.running][:3]
            raise ClusterError(
                f"{self._policy} leaves jobs waiting for ever: {', '.join(waiting) or 'all are stalled'}"
            )
        return soonest

    def _happen(self, events: list[Event], before_a_round: bool) -> None:
        """Let everything happen that happens now, or now and before the round's decision, and note it."""
        now, heap = self._now, self._heap
        while heap and heap[0][0] <= now and not (before_a_round and heap[0][1] == _LATE):
            _, kind, number, version = heapq.heappop(heap)
            if kind in (_SEGMENT, _LATE):
                if version == self._versions[number]:
                    self._end_segment(number, events)
            elif kind == _LOST:
                events.append(self._lose(number))
            else:
                self._books.room.regain(number)
                events.append(HostBack(number))
        while self._arrival <= now:
            self._books.arrive(self._arrived)
            events.append(Arrival(self._arrived))
            self._arrived += 1
            self._arrival = self._jobs[self._arrived].arrival if self._arrived < len(self._jobs) else math.inf
        if self._wake <= now:
            self._wake = math.inf
            events.append(Wake())
        if self._rates_are_old:
            self._renew_rates()

    def _end_segment(self, job: int, events: list[Event]) -> None:
        """A job is ready to compute, has come to where its rate changes, or is done."""
        if job not in self._until:  # it has been placed
            self._settle(job)
            self._began[job] = self._now, self._base[job]
            self._begin(job)
            return
        self._settle(job)
        self._base[job] = self._until[job]
        if self._until[job] >= self._jobs[job].progress.work:
            self._release(job)
            self._books.complete(job, self._now)
            self._left -= 1
            events.append(Completion(job))
            return
        self._begin(job)
        events.append(Advanced(job))

    def _lose(self, host: int) -> HostLost:
        jobs = self._books.holders(host)
        for job in jobs:
            self._settle(job)
            if job in self._began:
                begin, base = self._began[job]
                every, known = self._costs.checkpoint_every, self._books.known
                if every:
                    kept = (self._now - begin) // every * every
                    share = kept / (self._now - begin) if self._now > begin else 1.0
                    known.base[job] = base + share * (known.base[job] - base)
                else:
                    known.base[job] = base
            self._release(job)
        self._books.room.lose(host)
        return HostLost(host, jobs)

    # ------------------------------------------------------------------------------------------ what is decided

    def _carry_out(self, changes: Changes) -> None:
        moved, tuned = self._books.verified(changes, self._policy)
        for job in (*changes.stop, *(job for job, _ in moved)):
            self._settle(job)
            self._release(job, verified=True)
        for job, grant in (*changes.start, *moved):
            self._start(job, grant)
        for job, grant in tuned:
            self._retune(job, grant)
        if self._rates_are_old:
            self._renew_rates()

    def _retune(self, job: int, grant: Grant) -> None:
        """Let a job go on with another batch, clock or share of the devices that it has, which takes no time."""
        self._settle(job)
        before = self._books.retune(job, grant)
        if grant.slots != before.slots:
            if before.is_shared:
                self._share(job, before, False)
            if grant.is_shared:
                self._share(job, grant, True)
        if job in self._until:
            self._begin(job)

    def _start(self, job: int, grant: Grant) -> None:
        first = self._books.hold(job, grant, self._now)
        if grant.is_shared:
            self._share(job, grant, True)
        delay = self._costs.start if first else self._costs.restart
        if self._costs.doubling:
            delay += self._costs.doubling * math.log2(len(grant.slots))
        if delay:
            self._push(job, self._now + delay)
        else:
            self._began[job] = self._now, self._base[job]
            self._begin(job)

    def _begin(self, job: int) -> None:
        """Let a job proceed at the rate that it has now; under contention, rates are found for all jobs together."""
        if self._contention is not None:
            self._rates_are_old = True
            self._proceed(job, Rate(0.0, self._until.get(job, 0.0)))
            return
        grant = self._books.running[job]
        beside = [self._jobs[other] for other in self._neighbours(job, grant)] if grant.is_shared else []
        self._proceed(job, self._jobs[job].progress.rate(self._base[job], grant, self._cluster, beside))

    def _renew_rates(self) -> None:
        """Let all jobs proceed at the rates that they have beside each other now."""
        assert self._contention is not None
        self._rates_are_old = False
        books, computing = self._books, sorted(self._until)
        for job in computing:
            self._settle(job)
        running = [Running(self._jobs[job], books.running[job], float(books.known.base[job])) for job in computing]
        for job, rate in zip(computing, self._contention.rates(running, self._cluster), strict=True):
            known = (books.known.speed[job], self._until[job], books.communicating[job])
            if (rate.speed, rate.until, rate.communicating) != known:
                self._proceed(job, rate)

    def _proceed(self, job: int, rate: Rate) -> None:
        self._books.proceed(job, rate)
        self._until[job] = rate.until
        if rate.speed > 0:
            done = self._base[job]
            whole = exact = rate.exact_seconds(done)
            if rate.rounded:
                whole = rate.seconds(done)
            self._push(job, self._now + whole, _LATE if whole < exact else _SEGMENT)
        else:
            self._versions[job] += 1

    def _push(self, job: int, time: float, kind: int = _SEGMENT) -> None:
        self._versions[job] += 1
        heapq.heappush(self._heap, (time, kind, job, self._versions[job]))

    def _settle(self, job: int) -> None:
        self._books.settle(job, self._now)

    def _release(self, job: int, verified: bool = False) -> None:
        """Take a job's slots from it; it has been settled."""
        grant = self._books.release(job, verified)
        if grant.is_shared:
            self._share(job, grant, False)
        self._until.pop(job, None)
        self._began.pop(job, None)
        self._versions[job] += 1
        self._rates_are_old = self._contention is not None

    def _share(self, job: int, grant: Grant, comes: bool) -> None:
        """Note who is on shared devices, and let those beside proceed at their new rates."""
        for slot in grant.slots:
            there = self._beside.setdefault(slot[:2], set())
            if comes:
                there.add(job)
            else:
                there.discard(job)
        for other in self._neighbours(job, grant):
            if other in self._until:
                self._settle(other)
                self._begin(other)

    def _neighbours(self, job: int, grant: Grant) -> list[int]:
        if not grant.is_shared:
            return []
        return sorted({other for slot in grant.slots for other in self._beside.get(slot[:2], ()) if other != job})
