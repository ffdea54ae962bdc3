"""Jahani and others: nodes that are rented as what the jobs of the hour need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.cost.renting import DueJob, MachineType, Rented, rent
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@technique("jahani", paper="Jahani, Lattuada, Ciavotta, Ardagna, Amaldi, Zhang, ICCCS 2019")
@dataclass(frozen=True)
class Jahani(Policy):
    """At every submission and every end a mixed-integer program says what each node is rented as, and which jobs run on
    how many GPUs of which node, at least cost: rent until the first job of each node ends, tardiness of jobs that run,
    and that which jobs that wait would have if they began later where they are slowest. Jobs that run may be stopped,
    or moved to other GPUs. Of many jobs, those with the least time to spare are planned.

    A node is a rack: its hosts are the machines that it can be rented as, of which one at a time is used, and all racks
    have the same. The printed program was not at hand; this is its structure. Random jobs on five nodes cost 36 to 68 %
    less than first in first out, and 8 to 10 % less than by deadlines, each on the cheapest machine that is in time;
    where jobs come three times as fast and are due sooner, 65 to 79 % and 14 to 51 %. The paper reports 45 to 80 % of
    its own.
    """

    prices: tuple[float, ...] = knob((1.0,), low=0, doc="of an hour of each machine of a rack, in their order")
    wait: float = knob(300.0, low=1e-3, doc="seconds after which a job that waits is taken to begin")
    penalty: float = knob(2.0, low=0, doc="by how much the tardiness of jobs that wait counts more")
    window: int = knob(8, low=1, doc="jobs that are planned together")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        racks = self._racks(state)
        jobs = sorted(state.active, key=lambda job: (self._spare(state, job, racks[0]), job))[: self.window]
        hosts = state.cluster.hosts
        types = [MachineType(hosts[h].gpu, hosts[h].gpus, p / 3600) for h, p in zip(racks[0], self.prices, strict=True)]
        due = [self._due(state, job, racks[0]) for job in jobs]
        plan = rent(due, types, len(racks), self.wait, self.penalty, gap=0.01)
        grants = self._placed(state, jobs, plan, racks)
        wake = state.now + self.wait if len(grants) < len(state.active) else None
        return Decision(grants, wake), None

    def _racks(self, state: State) -> list[list[int]]:
        """Return the hosts of every rack."""
        found: dict[str, list[int]] = {}
        for number, host in enumerate(state.cluster.hosts):
            found.setdefault(host.rack, []).append(number)
        if any(len(rack) != len(self.prices) for rack in found.values()):
            raise ClusterError(
                f"{len(self.prices)} prices do not fit racks with other numbers of machines; give one each"
            )
        return list(found.values())

    def _due(self, state: State, number: int, rack: Sequence[int]) -> DueJob:
        """Return what a job takes on the machines of a rack."""
        job, left = state.jobs[number], max(state.remaining(number).value, 1e-6)
        rows = []
        for host in rack:
            row = []
            for gpus in range(1, min(state.cluster.hosts[host].gpus, job.most) + 1):
                grant = Grant(tuple(Slot(host, device) for device in range(gpus)))
                speed = job.progress.rate(float(state.done(number)), grant, state.cluster, ()).speed
                row.append(left / speed if gpus >= job.least and speed > 0 else 1e9)
            rows.append(tuple(row))
        return DueJob(tuple(rows), job.deadline - state.now, job.weight)

    def _spare(self, state: State, number: int, rack: Sequence[int]) -> float:
        due = self._due(state, number, rack)
        return due.deadline - min(min(row) for row in due.seconds)

    def _placed(self, state: State, jobs: Sequence[int], plan: Rented, racks: list[list[int]]) -> dict[int, Grant]:
        """Return slots for a plan, each of whose nodes is the rack on which most of its jobs run already."""
        grants, free = dict[int, Grant](), list(range(len(racks)))
        for node, kind in enumerate(plan.types):
            if kind is None:
                continue
            there = {job: where[1] for job, where in zip(jobs, plan.placed, strict=True) if where and where[0] == node}

            def stay(rack: int, kind: int = kind, there: dict[int, int] = there) -> list[int]:
                """Return the jobs that stay where they are if the node is this rack."""
                slots = {job: state.running[job].slots for job in there if job in state.running}
                return [job for job, s in slots.items() if s[0].host == racks[rack][kind] and len(s) == there[job]]

            rack = max(free, key=lambda rack: (len(stay(rack)), -rack))
            free.remove(rack)
            host, kept = racks[rack][kind], stay(rack)
            grants |= {job: state.running[job] for job in kept}
            taken = {slot.device for job in kept for slot in grants[job].slots}
            devices = [d for d in range(state.cluster.hosts[host].gpus) if d not in taken]
            for job in there:
                if job not in kept:
                    grants[job] = Grant.of(Slot(host, devices.pop(0)) for _ in range(there[job]))
        return grants
