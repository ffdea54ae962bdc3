"""The controller: an actor that asks the policy and lets gangs do what it decides."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

from laconic.cluster.books import Books
from laconic.cluster.decision import Changes, Decision, diff
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.journal import Journal, books_at, enter_row, events_of, grants_of, replayed, row_of
from laconic.cluster.outcome import Logged, Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.ray import nodes
from laconic.cluster.ray.gang import Gang, Stage
from laconic.cluster.ray.member import Ended
from laconic.cluster.ray.work import Task
from laconic.cluster.state import Advanced, Arrival, Completion, Event, HostBack, HostLost, Wake
from laconic.errors import ClusterError
from laconic.files import make_folder

LOOK_SECONDS = 1.0  # between looks at hosts and at how far jobs are
ANSWER_SECONDS = 2.0  # that a worker may take to say how far it is
TURN_SECONDS = 0.2  # of waiting for something to happen
ATTEMPTS = 4  # of a job between two checkpoints, before it is given up


class Run:
    """Jobs on a Ray cluster as a policy decides, in real time. All that it has to remember is in its journal: made
    again over the same folder, it goes on where it was, with jobs at their last checkpoints.

    What a decision changes is in the books at once; the gangs follow. A new gang prepares while the devices are still
    another's, and whoever shall give them up computes on until then. So a job may be done after it was preempted.

    - `jobs`: the jobs, in the order of their arrivals, which are counted from the first start on.
    - `tasks`: what the workers of each do.
    - `cluster`: the hosts; those that no node of Ray's says to be are lost.
    - `policy`: who decides.
    - `folder`: of the journal and of the jobs' checkpoints, which all hosts can reach.
    - `save_every`: seconds between checkpoints of a job.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        tasks: Sequence[Task],
        cluster: Cluster,
        policy: Policy,
        folder: Path,
        save_every: float,
    ) -> None:
        self._jobs, self._tasks, self._cluster, self._policy = list(jobs), list(tasks), cluster, policy
        self._folder, self._save_every = folder, save_every
        self._journal = Journal(folder / "journal.jsonl")
        self._books = Books(self._jobs, cluster)
        self._until: dict[int, float] = {}
        self._gangs: dict[int, list[Gang]] = {}  # of each job: who has devices, and who prepares to take them
        self._stopped_at: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._broken: set[int] = set()  # jobs that start again although nobody has decided it
        self._failed: dict[int, str] = {}
        self._arrived, self._looked = 0, -math.inf
        self._memory, self._wake, self._round = policy.init(), math.inf, -math.inf
        self._log: list[Logged] = []
        self._events: list[Event] = []
        self._name = f"laconic/{folder}"
        _remove_groups(self._name)
        if self._journal.entries:
            self._restore()
        else:
            self._began = time.time()
            self._journal.write("began", at=self._began, pid=os.getpid(), **self._facts())

    def run(self) -> Outcome:
        """Return when all jobs are done."""
        try:
            while not self._is_over:
                self._look()
                self._happened()
                if self._is_time_to_decide():
                    self._decide()
                self._reconcile()
                self._hear()
        finally:
            for gang in self._all():
                gang.close()
        if self._failed:
            why = "; ".join(f"{self._jobs[job].name}: {words}" for job, words in self._failed.items())
            raise ClusterError(f"jobs failed {ATTEMPTS} times in succession and were given up: {why}")
        return self._books.outcome(len(self._log), self._log)

    @property
    def _now(self) -> float:
        return time.time() - self._began

    @property
    def _is_over(self) -> bool:
        return self._arrived == len(self._jobs) and not self._books.active

    def _all(self) -> list[Gang]:
        return [gang for gangs in self._gangs.values() for gang in gangs]

    # ------------------------------------------------------------------------------------------ what happens

    def _happened(self) -> None:
        """Note who has arrived, and whether the policy wants to be woken."""
        now = self._now
        while self._arrived < len(self._jobs) and self._jobs[self._arrived].arrival <= now:
            self._books.arrive(self._arrived)
            self._events.append(Arrival(self._arrived))
            self._arrived += 1
        if self._wake <= now:
            self._wake = math.inf
            self._events.append(Wake())

    def _look(self) -> None:
        """Look at hosts and at how far jobs are, once in a while."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        there, room = nodes.present(), self._books.room
        for number, host in enumerate(self._cluster.hosts):
            if host.name not in there and number not in room.lost:
                self._events.append(self._lose(number))
            elif host.name in there and number in room.lost:
                room.regain(number)
                self._events.append(HostBack(number))
        self._measure()

    def _lose(self, host: int) -> HostLost:
        jobs = self._books.holders(host)
        for gang in self._all():
            if any(slot.host == host for slot in gang.grant.slots):
                self._close(gang, "lost")
        for job in jobs:
            self._books.settle(job, self._now)
            self._release(job)
        self._books.room.lose(host)
        return HostLost(host, jobs)

    def _measure(self) -> None:
        """Ask running gangs how far they are."""
        asked = {gang.members[0].seen.remote(): gang for gang in self._all() if gang.stage is Stage.RUNNING}
        if not asked:
            return
        answers, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        for reference in answers:
            try:
                seen = ray.get(reference)
            except RayError:
                continue  # its run ends, too, and tells
            gang = asked[reference]
            if seen.saved > gang.seen.saved:
                self._failures.pop(gang.job, None)
            gang.seen = seen
            self._advance(gang.job, seen.done)

    def _advance(self, job: int, done: float) -> None:
        """Note how far a job is."""
        self._books.settle(job, self._now)
        self._books.known.base[job] = done
        if job in self._until and done >= self._until[job] and done < self._jobs[job].progress.work:
            self._proceed(job)
            self._events.append(Advanced(job))

    def _proceed(self, job: int) -> None:
        """Let a job have the rate that is expected of it from here."""
        grant = self._books.running[job]
        rate = self._jobs[job].progress.rate(float(self._books.known.base[job]), grant, self._cluster, [])
        self._books.proceed(job, rate)
        self._until[job] = rate.until

    def _hear(self) -> None:
        """Wait a moment for what gangs tell, and take it."""
        heard = {reference: gang for gang in self._all() for reference in gang.awaited}
        taking = any(gang.stage is Stage.TAKING for gang in self._all())
        seconds = min(max(self._next_time() - self._now, 0.0), TURN_SECONDS / 10 if taking else TURN_SECONDS)
        if not heard:
            time.sleep(seconds)
            return
        answers, _ = ray.wait(list(heard), num_returns=len(heard), timeout=0)
        if not answers:
            answers, _ = ray.wait(list(heard), num_returns=1, timeout=seconds)
        for reference in answers:
            gang = heard[reference]
            if gang in self._gangs.get(gang.job, ()):
                try:
                    self._answered(gang, gang.answered(reference))
                except RayError as error:
                    self._fail(gang, error)

    def _answered(self, gang: Gang, answer: Any) -> None:
        if answer is None:
            return
        if gang.stage is Stage.PREPARING:
            gang.stage, gang.prepared_at = Stage.PREPARED, time.time()
        elif gang.stage is Stage.BEGINNING:
            self._begun(gang, answer)
        elif isinstance(answer, Ended):
            self._ended(gang, answer)

    def _begun(self, gang: Gang, done: float) -> None:
        job, now = gang.job, self._now
        gang.run()
        gang.seen = gang.seen._replace(done=done, saved=done)
        self._books.settle(job, now)
        self._books.known.base[job] = done
        if job in self._broken:
            self._books.known.restarts[job] += 1
            self._broken.remove(job)
        gap = time.time() - self._stopped_at.pop(job) if job in self._stopped_at else None
        seconds = {
            "gap": gap,  # since the job's last step
            "waited": time.time() - gang.made_at,
            "prepared": gang.prepared_at - gang.made_at,
            "idle": time.time() - gang.free_at,
        }
        self._journal.write("begun", job=job, at=now, done=done, workers=len(gang.members), **seconds)
        if self._is_wanted(gang):
            self._proceed(job)

    def _ended(self, gang: Gang, ended: Ended) -> None:
        job, now = gang.job, self._now
        self._close(gang, "done" if ended.is_done else "stopped", ended.work)
        self._failures.pop(job, None)
        self._stopped_at[job] = ended.at
        if ended.is_done:
            self._finish(job, now)

    def _finish(self, job: int, now: float) -> None:
        """Let a job go that is done or given up."""
        self._books.settle(job, now)
        if job in self._books.running:
            self._release(job)
        self._books.complete(job, now)
        self._events.append(Completion(job))
        self._journal.write("completed", job=job, at=now, row=row_of(self._books, job), failed=self._failed.get(job))
        for gang in list(self._gangs.pop(job, [])):
            gang.close()

    def _fail(self, gang: Gang, error: RayError) -> None:
        """A worker is gone or has raised something: the gang starts again where it was, from the last checkpoint."""
        job = gang.job
        if gang.holds_devices and self._is_wanted(gang):
            self._broken.add(job)
        self._close(gang, "failed")
        self._looked = -math.inf  # its host may be gone
        self._failures[job] = self._failures.get(job, 0) + 1
        if self._failures[job] >= ATTEMPTS:
            self._failed[job] = " ".join(str(error).split())[-300:]
            self._finish(job, self._now)

    def _close(self, gang: Gang, why: str, done: float | None = None) -> None:
        """Let a gang end, and note how far its job is then: as far as its last checkpoint, if not told otherwise."""
        job, now = gang.job, self._now
        gang.close()
        self._gangs[job].remove(gang)
        if gang.holds_devices:
            for heir in self._all():
                if _inherits(heir, gang):
                    heir.free_at = time.time()
            done = gang.seen.saved if done is None else done
            self._come_to(job, now, done)
            self._journal.write("ended", job=job, at=now, why=why, done=done)

    def _come_to(self, job: int, now: float, done: float) -> None:
        """Count a job's time up to now, from when on it computes no more, and how far it is."""
        self._books.settle(job, now)
        self._books.known.base[job] = done
        self._books.known.speed[job] = 0.0
        self._books.communicating.pop(job, None)
        self._until.pop(job, None)

    # ------------------------------------------------------------------------------------------ what is decided

    def _is_time_to_decide(self) -> bool:
        every = self._policy.every
        if every is None:
            return bool(self._events)
        number = self._now // every
        if not self._books.active:
            self._round = number
        return number > self._round

    def _next_time(self) -> float:
        """Return when something is to be done, if nothing happens before."""
        arrival = self._jobs[self._arrived].arrival if self._arrived < len(self._jobs) else math.inf
        every, look = self._policy.every, self._now + LOOK_SECONDS
        next_round = (self._now // every + 1) * every if every is not None else math.inf
        soonest = min(arrival, self._wake, next_round)
        books = self._books
        if soonest == math.inf and books.active and not (books.running or books.room.lost or self._all()):
            waiting = ", ".join(self._jobs[job].name for job in list(books.active)[:3])
            raise ClusterError(f"{self._policy} leaves jobs waiting for ever: {waiting}")
        return min(soonest, look)

    def _decide(self) -> None:
        self._measure()
        now, events, books = self._now, self._events, self._books
        for job in books.active:
            books.settle(job, now)
        for gang in self._all():
            if gang.stage is Stage.RUNNING:  # as it was measured a moment ago, and not as it was expected to be
                books.known.base[gang.job] = gang.seen.done
        decision, self._memory = self._policy.decide(books.state(now), events, self._memory)
        self._journal.decided(books, now, events, decision)
        self._enter(decision, now, events)
        if self._wake <= now:
            raise ClusterError(f"{self._policy} asks at {now:g} s to be woken at {self._wake:g} s")

    def _enter(self, decision: Decision, now: float, events: list[Event]) -> None:
        """Write a decision into the books."""
        changes = diff(self._books.running, decision)
        self._carry_out(changes, now)
        self._log.append(Logged(now, tuple(events), changes))
        self._wake = math.inf if decision.wake is None else decision.wake
        self._events = []
        if self._policy.every is not None:
            self._round = now // self._policy.every

    def _carry_out(self, changes: Changes, now: float) -> None:
        books = self._books
        moved, tuned = books.verified(changes, self._policy)
        books.running = dict(books.running)
        for job in (*changes.stop, *(job for job, _ in moved)):
            books.settle(job, now)
            self._release(job, verified=True)
        for job, grant in (*changes.start, *moved):
            books.hold(job, grant, now)
            self._broken.discard(job)
            for gang in self._gangs.get(job, ()):
                if gang.stage is Stage.RUNNING and self._is_wanted(gang):  # it has not given up its slots yet
                    self._proceed(job)
        for job, grant in tuned:
            books.settle(job, now)
            books.retune(job, grant)
            if job in self._until:
                self._proceed(job)

    def _release(self, job: int, verified: bool = False) -> None:
        self._books.release(job, verified)
        self._until.pop(job, None)

    # ------------------------------------------------------------------------------------------ what gangs do

    def _is_wanted(self, gang: Gang) -> bool:
        grant = self._books.running.get(gang.job)
        return grant is not None and grant.slots == gang.grant.slots and not gang.is_stopping

    def _reconcile(self) -> None:
        """Let gangs come closer to what is decided."""
        for gang in self._all():
            if not gang.holds_devices and not self._is_wanted(gang):
                self._close(gang, "not wanted any more")
        for job, grant in self._books.running.items():
            wanted = next((gang for gang in self._gangs.get(job, ()) if self._is_wanted(gang)), None)
            if wanted is None:
                self._prepare(job, grant)
            elif wanted.grant != grant and wanted.stage is Stage.RUNNING:
                wanted.tune(grant)
        gangs = self._all()
        for gang in gangs:
            if gang.holds_devices and not gang.is_stopping and not self._is_wanted(gang):
                heirs = [other for other in gangs if not other.holds_devices and _inherits(other, gang)]
                own = [heir for heir in heirs if heir.job == gang.job]  # a job that moves computes until it can move
                if not heirs or any(heir.stage is Stage.PREPARED for heir in own or heirs):
                    gang.stop()
        for gang in gangs:
            if gang.stage is Stage.PREPARED:
                if not any(other.holds_devices and _inherits(gang, other) and other.is_stopping for other in gangs):
                    gang.take()
            elif gang.stage is Stage.TAKING and gang.has_taken:
                gang.begin(self._jobs[gang.job].progress.work, self._save_every, self._home(gang.job))

    def _prepare(self, job: int, grant: Grant) -> None:
        name = f"{self._name}/{self._jobs[job].name}/{time.time_ns()}"
        make_folder(self._home(job))
        self._gangs.setdefault(job, []).append(Gang(job, grant, self._tasks[job], self._cluster, name))

    def _home(self, job: int) -> Path:
        return self._folder / "jobs" / self._jobs[job].name

    # ------------------------------------------------------------------------------------------ what is remembered

    def _facts(self) -> dict[str, Any]:
        return {
            "policy": str(self._policy),
            "jobs": [job.name for job in self._jobs],
            "hosts": [[host.name, host.gpus] for host in self._cluster.hosts],
        }

    def _restore(self) -> None:
        """Go on from the journal: no gang is there any more, and jobs are where their last checkpoints are."""
        began, *entries = self._journal.entries
        for name, value in self._facts().items():
            if began.get(name) != value:
                raise ClusterError(
                    f"{self._folder} is the folder of a run with other {name}: give this run a folder of its own"
                )
        self._began = began["at"]
        for again in replayed(entries, self._jobs, self._cluster, self._policy):
            if not again.is_equal:
                raise ClusterError(f"{self._policy} decides at {again.now:g} s otherwise than it did: it has changed")
            self._memory = again.memory
            self._log.append(Logged(again.now, again.events, diff(again.state.running, again.logged)))
        last = max((i for i, entry in enumerate(entries) if entry["kind"] == "decided"), default=None)
        finished = [entry for entry in entries if entry["kind"] == "completed"]
        if last is not None:
            entry = entries[last]
            self._books = books_at(entry, self._jobs, self._cluster)
            self._log.pop()  # it is entered once more
            self._enter(Decision(grants_of(entry["grants"]), entry["wake"]), entry["now"], events_of(entry))
            self._arrived = len({*self._books.active, *(entry["job"] for entry in finished)})
        for entry in finished:
            job = entry["job"]
            if job in self._books.active:  # the policy does not know yet
                if job in self._books.running:
                    self._release(job)
                self._books.active.remove(job)
                self._events.append(Completion(job))
            enter_row(self._books, job, entry["row"])
            self._books.completed[job] = entry["at"]
            if entry["failed"]:
                self._failed[job] = entry["failed"]
        begun = {entry["job"] for entry in entries if entry["kind"] == "begun"}
        for entry in entries if last is None else entries[last + 1 :]:
            if entry["kind"] in ("begun", "ended") and entry["job"] in self._books.active:
                self._come_to(entry["job"], entry["at"], entry["done"])
                if entry["kind"] == "begun" and entry["job"] in self._books.running:
                    self._proceed(entry["job"])
        for job in self._books.active:  # until now it was as the journal has it
            self._come_to(job, self._now, float(self._books.known.base[job]))
        self._broken = {job for job in self._books.running if job in begun}
        self._journal.write("restarted", at=self._now, pid=os.getpid())


def _inherits(heir: Gang, gang: Gang) -> bool:
    """Tell whether a gang cannot begin before another has ended: of the same job, or on its devices."""
    return heir.job == gang.job or not {slot[:2] for slot in heir.grant.slots}.isdisjoint(
        slot[:2] for slot in gang.grant.slots
    )


def _remove_groups(prefix: str) -> None:
    """Remove placement groups that a controller has left that is no more."""
    for facts in placement_group_table().values():
        if facts["name"].startswith(f"{prefix}/") and facts["state"] != "REMOVED":
            remove_placement_group(get_placement_group(facts["name"]))
