"""A decision: the whole allocation that a policy wants, what changes by it, and whether it can be carried out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.room import Room
from laconic.errors import ClusterError

SLACK = 1e-9  # of sums of shares


class Changed(Mapping[int, Grant]):
    """An allocation that differs from another in a few jobs, without a copy of it."""

    def __init__(self, base: Mapping[int, Grant], start: Mapping[int, Grant], stop: Iterable[int] = ()) -> None:
        self.base, self.start, self.stop = base, start, frozenset(stop)

    def __getitem__(self, job: int) -> Grant:
        if job in self.start:
            return self.start[job]
        if job in self.stop:
            raise KeyError(job)
        return self.base[job]

    def __iter__(self) -> Iterator[int]:
        yield from self.start
        yield from (job for job in self.base if job not in self.start and job not in self.stop)

    def __len__(self) -> int:
        gone = sum(job in self.base for job in self.stop if job not in self.start)
        return len(self.base) + sum(job not in self.base for job in self.start) - gone


@dataclass(frozen=True)
class Decision:
    """The whole allocation that a policy wants: jobs that are absent from it do not run.

    - `grants`: what each job that is to run holds, by its number.
    - `wake`: when the policy wants to be asked again, if nothing happens before, in seconds.
    """

    grants: Mapping[int, Grant] = field(default_factory=dict)
    wake: float | None = None

    @staticmethod
    def changing(
        running: Mapping[int, Grant],
        start: Mapping[int, Grant],
        stop: Iterable[int] = (),
        wake: float | None = None,
    ) -> Decision:
        """Return the decision that what runs goes on, but for some jobs: it costs as much as they are.

        - `running`: what runs.
        - `start`: jobs that start, or hold something else from now on.
        - `stop`: jobs that are preempted.
        - `wake`: when the policy wants to be asked again.
        """
        return Decision(Changed(running, start, stop), wake)


class Changes(NamedTuple):
    """What has to be done to get from one allocation to another.

    - `stop`: jobs that run and shall not.
    - `start`: jobs that do not run and shall, with what they get.
    - `resize`: jobs that go on with something else.
    """

    stop: tuple[int, ...]
    start: tuple[tuple[int, Grant], ...]
    resize: tuple[tuple[int, Grant], ...]

    def __bool__(self) -> bool:
        return bool(self.stop or self.start or self.resize)


NOTHING = Changes((), (), ())


def diff(running: Mapping[int, Grant], decision: Decision) -> Changes:
    """Return what changes when a decision is carried out.

    - `running`: what every running job holds.
    - `decision`: what is wanted.
    """
    wanted = decision.grants
    if type(wanted) is Changed and wanted.base is running:
        if not wanted.start and not wanted.stop:
            return NOTHING
        stop = [job for job in wanted.stop if job in running and job not in wanted.start]
        given = wanted.start
    else:
        stop, given = [job for job in running if job not in wanted], wanted
    start: list[tuple[int, Grant]] = []
    resize: list[tuple[int, Grant]] = []
    for job, grant in given.items():
        held = running.get(job)
        if held is None:
            start.append((job, grant))
        elif held is not grant and held != grant:
            resize.append((job, grant))
    return Changes(tuple(sorted(stop)), tuple(start), tuple(resize))


def check(changes: Changes, running: Mapping[int, Grant], jobs: Sequence[Job], room: Room) -> Room:
    """Return what is free after changes. Refuse those that cannot be carried out: a device or an optical port given
    away twice, a part of a gang, a host that lacks what a job needs or is lost.

    - `changes`: what is to be done.
    - `running`: what every running job holds.
    - `jobs`: all jobs, by their numbers.
    - `room`: what is free.
    """
    after, circuits = room.copy(), False
    for job in (*changes.stop, *(job for job, _ in changes.resize)):
        after.give(jobs[job], running[job])
    for job, grant in (*changes.start, *changes.resize):
        wanted = jobs[job]
        _check_gang(wanted, grant)
        if after.take(wanted, grant) < -SLACK:
            _refuse(wanted, grant, after)
        _check_types(wanted, grant, room.cluster)
        if wanted.cpu_milli or wanted.memory_mib:
            _check_hosts(wanted, grant, after)
        circuits = circuits or bool(grant.circuits)
    if circuits:
        _check_circuits(changes, running, jobs, room)
    return after


def _refuse(job: Job, grant: Grant, after: Room) -> None:
    """Say which device of a grant is not there or not free."""
    hosts = after.cluster.hosts
    for host, device, share in grant.slots:
        if not (0 <= host < len(hosts) and 0 <= device < hosts[host].gpus):
            raise ClusterError(f"{job.name} is given device {device} of host {host}, which does not exist")
        if host in after.lost or after.free[host, device] < -SLACK:
            raise ClusterError(f"device {device} of {hosts[host].name} has no {share:g} left for {job.name}")


def _check_gang(job: Job, grant: Grant) -> None:
    workers = len(grant.slots)
    if not job.least <= workers <= job.most:
        wanted = str(job.least) if job.least == job.most else f"{job.least} to {job.most}"
        raise ClusterError(f"{job.name} is given {workers} slots and runs with {wanted}")
    if not grant.is_proper:
        for slot in grant.slots:
            if not 0 < slot.share <= 1:
                raise ClusterError(f"{job.name} is given {slot.share:g} of a device; a share is above 0 and at most 1")
        raise ClusterError(f"{job.name} is given a device twice; give each of its workers another")


def _check_types(job: Job, grant: Grant, cluster: Cluster) -> None:
    if job.gpu_types:
        for slot in grant.slots:
            if cluster.hosts[slot.host].gpu not in job.gpu_types:
                raise ClusterError(f"{job.name} cannot run on a {cluster.hosts[slot.host].gpu}")


def _check_circuits(changes: Changes, running: Mapping[int, Grant], jobs: Sequence[Job], room: Room) -> None:
    """Refuse circuits for which a rack has no port, or where the job is not."""
    ports = dict(room.ports)
    for job in (*changes.stop, *(job for job, _ in changes.resize)):
        for rack in (rack for circuit in running[job].circuits for rack in circuit):
            ports[rack] = ports.get(rack, 0) + 1
    for job, grant in (*changes.start, *changes.resize):
        racks = {room.cluster.hosts[slot.host].rack for slot in grant.slots}
        for one, other in grant.circuits:
            if one == other or not racks.issuperset((one, other)):
                raise ClusterError(f'{jobs[job].name} is given a circuit from "{one}" to "{other}" and is not in both')
            for rack in (one, other):
                ports[rack] = ports.get(rack, 0) - 1
                if ports[rack] < 0:
                    raise ClusterError(f'rack "{rack}" has no optical port left for {jobs[job].name}')


def _check_hosts(job: Job, grant: Grant, after: Room) -> None:
    """Refuse hosts that lack cores or memory."""
    for host, _ in grant.by_host:
        if after.cpu_milli[host] < -SLACK or after.memory_mib[host] < -SLACK:
            raise ClusterError(f"{after.cluster.hosts[host].name} lacks the cores or the memory that {job.name} needs")
