"""Gandiva: jobs take turns on GPUs, are packed where that pays, and move; what is measured judges each action."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.room import Room
from laconic.cluster.sharing.turns import Device, Group, Servers, Unit, grant_of
from laconic.cluster.state import Advanced, Arrival, Completion, Event, HostLost, State, Wake
from laconic.registry import knob, technique

_ROUNDING = 1e-9  # of a turn


@dataclass
class Introspection:
    """What is remembered: who is where and who waits; the rates of jobs alone, by type of GPU; packs that were kept,
    with the normalised throughput that they reached, and those that were not; and the devices lent to elastic jobs."""

    groups: list[Group] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    alone: dict[tuple[int, str], float] = field(default_factory=dict)
    kept: dict[Unit, float] = field(default_factory=dict)
    refused: set[Unit] = field(default_factory=set)
    lent: dict[int, tuple[Device, ...]] = field(default_factory=dict)


@technique("gandiva", paper="Xiao et al., OSDI 2018")
@dataclass(frozen=True)
class Gandiva(Policy):
    """A new job goes to the server of its affinity (the gang size that it hosts) with the lowest height (GPUs demanded
    over GPUs present), else to an unused server, else to any free GPUs, on as few servers as possible; where there are
    none it takes turns with jobs of as large a gang, each for a quantum; else it waits.

    Meanwhile rates are read. Of jobs that take turns, those of the lowest utilisation are packed and run at the same
    time; after a quantum the pack is kept if their rates, each over the rate alone, sum to more than 1, and is
    otherwise never tried again. Its later turns last a quantum for each of its jobs, so that nobody loses by it.
    Jobs that share GPUs move to free ones or where fewer do; gangs on more servers than they need move together, for
    which smaller ones make way; idle GPUs of its server are lent to an elastic job, until somebody needs them.

    Suspending, resuming and migrating cost what the replay says a restart does; changing shares costs nothing. A switch
    comes at the end of the quantum: what is left of a mini-batch then is a part of that cost. The paper's text leaves
    the quantum, the order of actions and their back-off open: one minute, the order above, and none.
    """

    quantum: float = knob(60.0, above=0, doc="seconds of a job's turn")
    packs: bool = knob(True, doc="whether jobs that take turns are tried together")

    def init(self) -> Introspection:
        return Introspection()

    def decide(self, state: State, events: Sequence[Event], memory: Introspection) -> tuple[Decision, Introspection]:
        step = _Step(self, state, memory)
        step.note(events)
        undone = step.judge()
        if undone or not all(isinstance(event, Wake | Advanced) for event in events):
            step.place_waiting()
            step.move()
        for group in memory.groups:
            step.turn(group)
        return step.decision(), memory


class _Step:
    """A decision in the making: what one call of the policy changes about its groups of GPUs."""

    def __init__(self, policy: Gandiva, state: State, memory: Introspection) -> None:
        self._policy, self._state, self._memory = policy, state, memory
        self._servers = Servers(state.cluster, memory.groups, state.room.lost)

    def note(self, events: Sequence[Event]) -> None:
        """Take in what happened, and read the rates of those that run alone."""
        state, memory = self._state, self._memory
        for event in events:
            if isinstance(event, Arrival):
                memory.queue.append(event.job)
            elif isinstance(event, Completion):
                self._leave(event.job)
                memory.lent.pop(event.job, None)
            elif isinstance(event, HostLost):
                gone = [group for group in memory.groups if event.host in group.hosts]
                memory.queue = sorted(job for group in gone for job in group.jobs) + memory.queue
                memory.groups[:] = [group for group in memory.groups if event.host not in group.hosts]
        for group in memory.groups:
            job = group.units[0][0]
            if len(group.units[0]) == 1 and job not in memory.lent and state.speed(job) > 0:
                memory.alone[job, self._type(group)] = float(state.speed(job))

    def judge(self) -> bool:
        """Keep or undo each pack that runs, on trial at the end of its turn, kept ones all the time; tell whether one
        was undone."""
        undone = False
        for group in self._memory.groups:
            pack = group.units[0]
            is_known = pack in self._memory.kept and all(self._state.speed(job) > 0 for job in pack)
            if len(pack) == 1 or not (is_known or self._has_ended(group)):
                continue
            throughput = self._throughput(pack, group)
            if throughput > 1:
                self._memory.kept[pack] = throughput
            else:
                self._memory.kept.pop(pack, None)
                self._memory.refused.add(pack)
                group.units = [*group.units[1:], *((job,) for job in pack)]
                group.until, undone = -math.inf, True
        return undone

    def place_waiting(self) -> None:
        """Give devices to those that wait, in the order of their arrivals."""
        for job in list(self._memory.queue):
            gang, hosts = self._state.jobs[job].workers, self._hosts([job])
            devices = self._servers.place(gang, hosts)
            if devices is not None:
                self._memory.groups.append(Group(devices, [(job,)]))
                self._memory.queue.remove(job)
            elif (group := self._servers.shared(gang, hosts)) is not None:
                group.units.append((job,))
                self._memory.queue.remove(job)

    def move(self) -> None:
        """Migrate: gangs that are spread, then jobs that share devices."""
        for group in list(self._memory.groups):
            if len(group.hosts) > 1:
                self._bring_together(group)
        while self._even_out():
            pass

    def turn(self, group: Group) -> None:
        """Let the next unit have its turn, where the first has had its own or is gone; two may be packed for it."""
        if group.until > -math.inf:
            if len(group.units) < 2 or not self._has_ended(group):
                return
            group.units.append(group.units.pop(0))
        if self._policy.packs and (pair := self._to_pack(group)):
            group.units = [pair, *(unit for unit in group.units[1:] if unit[0] not in pair)]
        unit = group.units[0]
        group.until = self._state.now + self._policy.quantum * (len(unit) if unit in self._memory.kept else 1)

    def decision(self) -> Decision:
        """Return what runs: of each group the unit whose turn it is."""
        grants: dict[int, Grant] = {}
        wake = math.inf
        room: Room | None = None
        lent: dict[int, tuple[Device, ...]] = {}
        for group in self._memory.groups:
            unit = group.units[0]
            for job in unit:
                grants[job] = grant_of(group.devices, 1 / len(unit))
            if len(group.units) > 1 or (len(unit) > 1 and unit not in self._memory.kept):
                wake = min(wake, group.until)
            elif len(unit) == 1 and self._state.jobs[unit[0]].most > group.gang and len(group.hosts) == 1:
                room = room or self._servers.room()
                if more := self._to_lend(group, unit[0], room):
                    lent[unit[0]] = more
                    grants[unit[0]] = grant_of((*group.devices, *more))
                    for host, device in more:
                        room.free[host, device] = 0.0
        self._memory.lent = lent
        return Decision(grants, None if wake == math.inf else wake)

    # ------------------------------------------------------------------------------------------ packing

    def _to_pack(self, group: Group) -> Unit | None:
        """Return the two single jobs of a group that keep least of a GPU busy, were measured alone, fit into its memory
        and have not failed together, when it is the turn of one of them."""
        state, memory, gpu = self._state, self._memory, self._type(group)
        single = [unit[0] for unit in group.units if len(unit) == 1 and (unit[0], gpu) in memory.alone]
        pairs = sorted(
            itertools.combinations(sorted(single), 2),
            key=lambda pair: (sum(state.jobs[job].utilisation for job in pair), pair),
        )
        space = min(state.cluster.hosts[host].gpu_memory_bytes for host in group.hosts)
        for pair in pairs:
            if pair not in memory.refused and sum(state.jobs[job].gpu_memory_bytes for job in pair) <= space:
                return pair if group.units[0][0] in pair else None
        return None

    def _throughput(self, pack: Unit, group: Group) -> float:
        """Return the summed rates of a pack, each over its rate alone."""
        gpu = self._type(group)
        return sum(float(self._state.speed(job)) / self._memory.alone[job, gpu] for job in pack)

    # ------------------------------------------------------------------------------------------ moving

    def _even_out(self) -> bool:
        """Move one job or pack from where devices are shared to free ones, or to where fewer share; tell whether."""
        crowded = [group for group in self._memory.groups if len(group.jobs) > 1]
        for group in sorted(crowded, key=lambda group: (-len(group.jobs), group.devices)):
            unit = group.units[-1] if len(group.units) > 1 else group.units[0][1:]
            hosts = self._hosts(unit)
            devices = self._servers.place(group.gang, hosts)
            if devices is not None:
                self._take_out(group, unit)
                self._memory.groups.append(Group(devices, [unit]))
                return True
            other = self._servers.shared(group.gang, hosts)
            if other is not None and len(other.jobs) + len(unit) < len(group.jobs) and len(group.units) > 1:
                self._take_out(group, unit)
                other.units.append(unit)
                return True
        return False

    def _bring_together(self, group: Group) -> None:
        """Move a gang to fewer servers; where none has room, from one server the smallest gangs make way for it."""
        hosts = self._hosts(group.jobs)
        found = consolidated(self._servers.room(hosts, [group]), group.gang)
        if found is not None and len(found.by_host) < len(group.hosts):
            self._migrate(group, found)
            return
        small = [other for other in self._memory.groups if len(other.hosts) == 1 and other.gang < group.gang]
        for host in sorted(hosts):
            leaving = [group]
            for other in sorted((o for o in small if o.hosts == {host}), key=lambda o: (o.gang, o.devices)):
                if self._servers.room({host}, leaving).gpus >= group.gang:
                    break
                leaving.append(other)
            if self._servers.room({host}, leaving).gpus >= group.gang and self._make_way(group, host, leaving[1:]):
                return

    def _make_way(self, group: Group, host: int, leaving: Sequence[Group]) -> bool:
        """Move gangs off a host and another onto it, if there is room for all; tell whether."""
        before = [(other, other.devices) for other in (group, *leaving)]
        together = consolidated(self._servers.room({host}, (group, *leaving)), group.gang)
        assert together is not None, "there is room for it"
        self._migrate(group, together)
        for i, other in enumerate(leaving):
            elsewhere = self._hosts(other.jobs) - {host}
            found = consolidated(self._servers.room(elsewhere, leaving[i:]), other.gang)
            if found is None or len(found.by_host) > 1:
                for moved, devices in before:
                    moved.devices = devices
                return False
            self._migrate(other, found)
        return True

    def _migrate(self, group: Group, grant: Grant) -> None:
        group.devices, group.until = grant.devices, self._state.now + self._policy.quantum

    def _to_lend(self, group: Group, job: int, room: Room) -> tuple[Device, ...]:
        """Return the devices that an elastic job gets beside its own: those that it has and others that are idle."""
        wanted = self._state.jobs[job].most - group.gang
        (host,) = group.hosts
        had = self._memory.lent.get(job, ())
        idle = [(host, device) for device in range(self._state.cluster.hosts[host].gpus) if room.free[host, device] > 0]
        return tuple(sorted(idle, key=lambda device: (device not in had, device))[:wanted])

    # ------------------------------------------------------------------------------------------ small things

    def _has_ended(self, group: Group) -> bool:
        return self._state.now >= group.until - _ROUNDING

    def _type(self, group: Group) -> str:
        return "+".join(sorted({self._state.cluster.hosts[host].gpu for host in group.hosts}))

    def _hosts(self, jobs: Sequence[int]) -> set[int]:
        """Return the hosts that are there and on which all of some jobs can run."""
        wanted = [types for job in jobs if (types := self._state.jobs[job].gpu_types)]
        return {
            number
            for number, host in enumerate(self._state.cluster.hosts)
            if number not in self._state.room.lost and all(host.gpu in types for types in wanted)
        }

    def _take_out(self, group: Group, unit: Unit) -> None:
        for job in unit:
            self._leave(job, group)

    def _leave(self, job: int, group: Group | None = None) -> None:
        """Let a job leave its group, which ends with its last; who is left of a pack has the turn on its own."""
        group = group or next(group for group in self._memory.groups if job in group.jobs)
        if job in group.units[0] and len(group.units[0]) == 1:
            group.until = -math.inf
        rest = [tuple(other for other in unit if other != job) for unit in group.units]
        group.units = [unit for unit in rest if unit]
        if not group.units:
            self._memory.groups.remove(group)
