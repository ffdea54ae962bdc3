"""FfDL: whole gangs, placed by the best of some biased draws, in a service of many tenants with quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Arrival, Event, State
from laconic.registry import knob, technique


@technique("ffdl", paper="Jayaram et al., Middleware 2019")
@dataclass(frozen=True)
class Ffdl(Policy):
    """A job's learners start together or not at all, each with its GPUs on one host. Hosts are drawn for them several
    times, with a bias, and the best draw is taken: packing prefers hosts that are in use, spreading those that are
    free. Spreading was the first choice of the authors, and left no host with room for large learners.

    Tenants have quotas. Who is within its own may preempt jobs of tenants above theirs, the latest first; beyond it,
    jobs run on what is idle. Jobs are considered in the order of their arrivals, and those that do not fit are passed
    over. How a job is deployed, restarted and ended by components that crash is `laconic.cluster.platform.lifecycle`.

    Biased sampling is known by name and idea only: here the chance of a host is the square of the GPUs that it has in
    use, or free, and one.
    """

    packing: bool = knob(True, doc="whether hosts in use are preferred; otherwise free ones are")
    quotas: tuple[int, ...] = knob(
        (), low=0, doc="GPUs of each tenant, in the order of their first jobs; none: no limit"
    )
    learner: int = knob(4, low=1, doc="most GPUs of a learner, which are on one host")
    draws: int = knob(20, low=1, doc="placements that are drawn for a job")
    seed: int = knob(0, low=0, doc="of what is drawn")

    def init(self) -> list[str]:
        return []

    def decide(self, state: State, events: Sequence[Event], memory: list[str]) -> tuple[Decision, list[str]]:
        for event in events:
            if isinstance(event, Arrival) and state.jobs[event.job].tenant not in memory:
                memory.append(state.jobs[event.job].tenant)
        room, start, stop = state.room.copy(), dict[int, Grant](), list[int]()
        held = dict.fromkeys(memory, 0)
        for number, had in state.running.items():
            held[state.jobs[number].tenant] += len(had.slots)
        limits = {tenant: self._quota(state, memory.index(tenant)) for tenant in memory}
        for number in sorted(state.waiting, key=lambda job: not self._is_within(state, job, held, limits)):
            job, trial, out = state.jobs[number], room.copy(), list[int]()
            while (grant := self.place(trial, job.workers, number)) is None:
                over = {tenant: held[tenant] - self._freed(state, out, tenant) - limits[tenant] for tenant in held}
                borrowed = [
                    other
                    for other in state.running
                    if other not in stop and other not in out and over[state.jobs[other].tenant] > 0
                ]
                if not borrowed or not self._is_within(state, number, held, limits):
                    break
                out.append(max(borrowed))
                trial.give(state.jobs[out[-1]], state.running[out[-1]])
            if grant is not None:
                for other in out:
                    held[state.jobs[other].tenant] -= len(state.running[other].slots)
                stop += out
                trial.take(job, grant)
                room, start[number] = trial, grant
                held[job.tenant] += job.workers
        return Decision.changing(state.running, start, stop), memory

    def place(self, room: Room, workers: int, number: int) -> Grant | None:
        """Return the best of some placements of a whole gang; None where none was found.

        - `room`: what is free.
        - `workers`: its GPUs.
        - `number`: of the job, from which draws come.
        """
        if workers > room.gpus or min(workers, self.learner) > room.whole.max():
            return None
        whole, every = divmod(workers, self.learner)
        pods = [self.learner] * whole + [every] * bool(every)
        rng = np.random.default_rng((self.seed, number))
        gpus = np.array([host.gpus for host in room.cluster.hosts])
        best: tuple[float, list[int]] | None = None
        for _ in range(self.draws):
            free, chosen = room.whole.copy(), list[int]()
            for pod in pods:
                liked = ((gpus - free if self.packing else free) + 1.0) ** 2 * (free >= pod)
                if not liked.any():
                    break
                chosen.append(int(rng.choice(len(free), p=liked / liked.sum())))
                free[chosen[-1]] -= pod
            else:
                filled = float(((gpus - free) ** 2).sum())
                value = filled if self.packing else -filled
                if best is None or value > best[0]:
                    best = value, chosen
        if best is None:
            return None
        slots: list[Slot] = []
        at = {host: np.flatnonzero(room.free[host] >= ALMOST).tolist() for host in best[1]}
        for host, pod in zip(best[1], pods, strict=True):
            slots += [Slot(host, at[host].pop(0)) for _ in range(pod)]
        return Grant.of(slots)

    def _quota(self, state: State, tenant: int) -> int:
        if not self.quotas:
            return state.cluster.gpus
        return self.quotas[tenant] if tenant < len(self.quotas) else 0

    def _is_within(self, state: State, number: int, held: dict[str, int], limits: dict[str, int]) -> bool:
        job = state.jobs[number]
        return held[job.tenant] + job.workers <= limits[job.tenant]

    def _freed(self, state: State, out: list[int], tenant: str) -> int:
        return sum(len(state.running[other].slots) for other in out if state.jobs[other].tenant == tenant)
