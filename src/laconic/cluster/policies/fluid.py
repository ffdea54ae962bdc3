"""Fluid: the trials of a group are as wide as their work is long, so that they end together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hpo.widths import widths
from laconic.cluster.policy import Policy
from laconic.cluster.state import Advanced, Event, State
from laconic.registry import knob, technique

Device = tuple[int, int]


@technique("fluid", paper="Yu, Liu, Chowdhury, MLSys 2021")
@dataclass(frozen=True)
class Fluid(Policy):
    """Divides all GPUs among the trials of a search by water filling over the work that each has left on one GPU:
    several trials share a GPU, or one trains on several. It is done anew whenever a trial ends, comes, or is known
    better; whoever gets another width is restarted with it.

    A new trial runs alone on one GPU until it reports its first iteration, from which its speed is known; meanwhile the
    others get what is left. Jobs that report nothing therefore keep one GPU. All trials that are there are one group,
    as the groups of a synchronous search follow each other.

    Of widths above 1 whole GPUs are given, those that remain by the largest fractions; trials below 1 are dealt to the
    other GPUs, the widest first, each to the emptiest, and fill it in proportion to their widths. Scaled widths can
    fall below what one GPU's memory takes: no more than `packed` trials are ever on one, and the others wait. The
    paper's text of how widths become GPUs was not available; its program hands the fractions to Ray.
    """

    packed: int = knob(2, low=1, doc="the most trials that share a GPU")
    most: int = knob(4, low=1, doc="the most GPUs that a trial can use")

    def init(self) -> dict[int, float]:
        return {}

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[int, float]
    ) -> tuple[Decision, dict[int, float]]:
        changed = False
        for event in events:
            if not isinstance(event, Advanced):
                changed = True
            elif event.job not in memory:
                memory[event.job] = float(state.tables.speed[event.job])
                changed = True
        if not changed:  # an iteration of a trial that is known
            return Decision.changing(state.running, {}), memory
        memory = {job: speed for job, speed in memory.items() if job in state.active}
        free = _devices(state)
        grants: dict[int, Grant] = {}
        for job in (job for job in state.active if job not in memory):
            wanted = state.jobs[job].least
            if wanted <= len(free):
                grants[job] = _take(free, wanted, state.running.get(job))
        known = [job for job in state.active if job in memory]
        if known and free:
            heights = [state.remaining(job).value / memory[job] for job in known]
            wide = dict(zip(known, widths(heights, len(free), self.packed, self.most).tolist(), strict=True))
            grants |= self._place(state, wide, free)
        return Decision(grants), memory

    def _place(self, state: State, wide: Mapping[int, float], free: list[Device]) -> dict[int, Grant]:
        """Return devices for trials of such widths; `free` loses them."""
        order = sorted(wide, key=lambda job: (-wide[job], job))
        narrow = [job for job in order if wide[job] < 1 - 1e-9 and state.jobs[job].least == 1]
        several = [job for job in order if job not in narrow]
        counts = {job: max(int(wide[job] + 1e-9), state.jobs[job].least) for job in several}
        counts = {job: min(count, state.jobs[job].most) for job, count in counts.items()}
        shared = int(np.ceil(sum(wide[job] for job in narrow) - 1e-9))
        for job in several[::-1]:  # what is rounded up can be too much: the smallest wait
            if sum(counts.values()) + min(shared, 1) > len(free):
                del counts[job]
        shared = min(shared, len(free) - sum(counts.values()))
        spare = len(free) - shared - sum(counts.values())
        by_rest = sorted(counts, key=lambda job: (counts[job] - wide[job], job))
        while spare and (more := [job for job in by_rest if counts[job] < state.jobs[job].most]):
            for job in more[:spare]:
                counts[job] += 1
                spare -= 1
        grants = {job: _take(free, count, state.running.get(job)) for job, count in counts.items()}
        return grants | self._share(state, narrow, wide, free)

    def _share(
        self, state: State, narrow: Sequence[int], wide: Mapping[int, float], free: Sequence[Device]
    ) -> dict[int, Grant]:
        """Return shares of the devices that are left, the widest trials first."""
        there: dict[Device, list[int]] = {device: [] for device in free}
        for job in narrow:
            open_ = [device for device in free if len(there[device]) < self.packed]
            if not open_:
                break
            held = {slot[:2] for slot in state.running[job].slots} if job in state.running else set()
            place = min(open_, key=lambda d: (sum(wide[other] for other in there[d]), d not in held, d))
            there[place].append(job)
        return {
            job: Grant((Slot(*device, wide[job] / sum(wide[other] for other in jobs)),))
            for device, jobs in there.items()
            for job in jobs
        }


def _devices(state: State) -> list[Device]:
    """Return the devices of all hosts that are there."""
    hosts = enumerate(state.cluster.hosts)
    return [(h, d) for h, host in hosts if h not in state.room.lost for d in range(host.gpus)]


def _take(free: list[Device], count: int, held: Grant | None) -> Grant:
    """Take devices from those that are free: those that the trial holds already, then those of a host that has
    enough, then the first."""
    mine = {slot[:2] for slot in held.slots} if held else set()
    room: dict[int, int] = {}
    for host, _ in free:
        room[host] = room.get(host, 0) + 1
    chosen = sorted(free, key=lambda d: (d not in mine, room[d[0]] < count, room[d[0]], d))[:count]
    for device in chosen:
        free.remove(device)
    return Grant.of(Slot(*device) for device in chosen)
