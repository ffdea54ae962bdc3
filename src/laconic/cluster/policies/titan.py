"""Titan: fine-tuning jobs of one backbone are merged where that lets jobs end earlier on average."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hpo.finetuning import FineTuning, ends, merged_bytes
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.state import Arrival, Event, State
from laconic.registry import technique

Group = tuple[int, ...]


@technique("titan", paper="Gao et al., SoCC 2022")
@dataclass(frozen=True)
class Titan(Policy):
    """Shortest remaining time first over jobs whose durations are known, as their backbones are profiled; jobs of one
    backbone may become one job with shared parameters and a head each, which needs one set of GPUs.

    Whenever something happens, pairs of jobs or merged jobs are merged one after another, each time the pair that
    lowers the estimated sum of completion times most, while one does: the estimate lets everything that is there run
    without preemption, the shortest for its number of tasks first, from now on. Merged tasks stay merged until they are
    done. A pair is not considered where its memory does not fit a GPU, or a member cannot use the larger one's GPUs.
    Jobs that are no `FineTuning` are never merged; without merges this is `srtf`.

    Switching from job to job is cheap, as the next one's parameters come while the present one still computes
    (`laconic.cluster.sharing.pipeswitch`): replay it with the cost of restarts that follows. How the paper
    chooses merges is not established: this criterion is a reading of its abstract.
    """

    def init(self) -> tuple[Group, ...]:
        return ()

    def decide(
        self, state: State, events: Sequence[Event], memory: tuple[Group, ...]
    ) -> tuple[Decision, tuple[Group, ...]]:
        groups = [kept for group in memory if (kept := tuple(job for job in group if job in state.active))]
        arrived = [event.job for event in events if isinstance(event, Arrival)]
        groups = merge(state, [*groups, *((job,) for job in arrived)])
        seen = _Estimates(state)
        wanted: list[Group] = []
        left = state.cluster.gpus - sum(state.cluster.hosts[host].gpus for host in state.room.lost)
        for group in sorted(groups, key=seen.key):
            if seen.gpus(group) <= left:
                wanted.append(group)
                left -= seen.gpus(group)
        return _placed(state, seen, wanted), tuple(groups)


def merge(state: State, groups: Iterable[Group]) -> list[Group]:
    """Return the groups after all merges that pay.

    - `state`: the cluster now.
    - `groups`: jobs and merged jobs.
    """
    found, seen = list(groups), _Estimates(state)
    total = seen.total(found)
    while True:
        best: tuple[float, list[Group]] | None = None
        for one, other in itertools.combinations(found, 2):
            both = tuple(sorted((*one, *other)))
            if seen.can_merge(both):
                after = [*(group for group in found if group not in (one, other)), both]
                sum_ = seen.total(after)
                if sum_ < (best[0] if best else total) * (1 - 1e-9):
                    best = sum_, after
        if best is None:
            return found
        total, found = best


class _Estimates:
    """What is expected of groups, each looked up once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._ends: dict[Group, list[float]] = {}

    def gpus(self, group: Group) -> int:
        return max(self.state.jobs[job].workers for job in group)

    def can_merge(self, group: Group) -> bool:
        """Tell whether jobs can be one: a backbone, GPUs that all can use, and memory."""
        jobs, gpus = [self.state.jobs[job] for job in group], self.gpus(group)
        tasks = [job.progress for job in jobs if isinstance(job.progress, FineTuning)]
        if len(tasks) < len(jobs) or len({task.backbone for task in tasks}) > 1:
            return False
        room = min(host.gpu_memory_bytes for host in self.state.cluster.hosts)
        return all(job.least <= gpus <= job.most for job in jobs) and merged_bytes(tasks, gpus) <= room

    def ends(self, group: Group) -> list[float]:
        """Return when each job is done, in seconds from when the group starts."""
        if group not in self._ends:
            left = [(self.state.jobs[job].progress, self.state.remaining(job).value) for job in group]
            tasks = [(task, work) for task, work in left if isinstance(task, FineTuning)]
            self._ends[group] = ends(tasks, self.gpus(group)) if len(group) > 1 else [left[0][1]]
        return self._ends[group]

    def key(self, group: Group) -> tuple[float, Group]:
        return max(self.ends(group)) / len(group), group

    def total(self, groups: Sequence[Group]) -> float:
        """Return the sum of completion times, from now on, where groups start in order as GPUs become free."""
        lost = sum(self.state.cluster.hosts[host].gpus for host in self.state.room.lost)
        free, now, total = self.state.cluster.gpus - lost, 0.0, 0.0
        running: list[tuple[float, int]] = []
        ahead = sorted(groups, key=self.key)
        while ahead:
            passed: list[Group] = []
            for group in ahead:
                gpus, each = self.gpus(group), self.ends(group)
                if gpus <= free:
                    free -= gpus
                    total += now * len(group) + sum(each)
                    heapq.heappush(running, (now + max(each), gpus))
                else:
                    passed.append(group)
            ahead = passed
            if ahead and not running:
                return float("inf")  # one asks for more than there is
            if ahead:
                now, gpus = heapq.heappop(running)
                free += gpus
        return total


def _placed(state: State, seen: _Estimates, wanted: Sequence[Group]) -> Decision:
    """Return the decision that these groups run: who does and is the same goes on where it is."""
    kept = [group for group in wanted if _is_together(state, group)]
    going_on = {job for group in kept for job in group}
    room = state.room.copy()
    stop = [job for job in state.running if job not in going_on]
    for job in stop:
        room.give(state.jobs[job], state.running[job])
    start: dict[int, Grant] = {}
    for group in wanted:
        if group not in kept and (grant := consolidated(room, seen.gpus(group))) is not None:
            shared = replace(grant, slots=tuple(Slot(s.host, s.device, 1 / len(group)) for s in grant.slots))
            for job in group:
                start[job] = shared
                room.take(state.jobs[job], shared)
    return Decision.changing(state.running, start, [job for job in stop if job not in start])


def _is_together(state: State, group: Group) -> bool:
    """Tell whether a group runs as one, perhaps with members that are done by now."""
    held = [state.running.get(job) for job in group]
    first = held[0]
    return first is not None and all(grant == first for grant in held) and first.slots[0].share <= 1 / len(group) + 1e-9
