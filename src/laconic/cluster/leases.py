"""Plans of leases: which jobs hold GPUs in which of the equal terms that time is cut into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Need(NamedTuple):
    """What a job has to be given to be done in time.

    - `gpus`: in each of its leases.
    - `leases`: how many.
    - `last`: the number of the latest lease that is of use to it.
    - `weight`: how much it counts that it is done in time.
    """

    gpus: int
    leases: int
    last: int
    weight: float = 1.0


@dataclass
class LeasePlan:
    """The leases of accepted jobs.

    - `needs`: what each was accepted with.
    - `leases`: the numbers of the leases of each job, in order.
    """

    needs: dict[int, Need] = field(default_factory=dict)
    leases: dict[int, list[int]] = field(default_factory=dict)

    def used(self, lease: int) -> int:
        """Return the GPUs that are promised in a lease.

        - `lease`: its number.
        """
        return sum(self.needs[job].gpus for job, held in self.leases.items() if lease in held)

    def drop(self, job: int) -> None:
        """Forget a job.

        - `job`: its number.
        """
        self.needs.pop(job, None)
        self.leases.pop(job, None)

    def trim(self, job: int, need: Need, first: int) -> bool:
        """Let a job keep no more leases than it needs now, the latest that are of use to it, so that those that are
        near are left to others. Return whether they suffice.

        - `job`: its number.
        - `need`: what it needs from now on.
        - `first`: the number of the first lease that is not past.
        """
        useful = [lease for lease in self.leases[job] if first <= lease <= need.last]
        self.needs[job], self.leases[job] = need, useful[max(len(useful) - need.leases, 0) :]
        return len(useful) >= need.leases

    def add(self, job: int, need: Need, first: int, capacity: int) -> bool:
        """Accept a job if it fits beside what is promised, the earliest leases first, and return whether it did.

        - `job`: its number.
        - `need`: what it needs.
        - `first`: the number of the first lease that it can have.
        - `capacity`: the GPUs that there are.
        """
        if need.gpus > capacity or need.last - first + 1 < need.leases:
            return False
        free = self._free(first, need.last, capacity)
        fit = np.flatnonzero(free >= need.gpus)[: need.leases]
        if len(fit) < need.leases:
            return False
        self.needs[job], self.leases[job] = need, (fit + first).tolist()
        return True

    def rearrange(self, job: int, need: Need, first: int, capacity: int) -> bool:
        """Accept a job if it fits when all leases are handed out anew, each to those that can least do without it, and
        return whether it did.

        - `job`: its number.
        - `need`: what it needs.
        - `first`: the number of the first lease that it can have.
        - `capacity`: the GPUs that there are.
        """
        if need.gpus > capacity:
            return False
        needs = {other: self.needs[other] for other, held in self.leases.items() if held} | {job: need}
        left = {other: len(self.leases[other]) for other in needs if other != job} | {job: need.leases}
        leases: dict[int, list[int]] = {other: [] for other in needs}
        lease = first
        while left:
            free = capacity
            slack = {other: needs[other].last - lease + 1 - count for other, count in left.items()}
            if min(slack.values()) < 0:
                return False
            for other in sorted(left, key=lambda other: (slack[other], -needs[other].gpus, other)):
                if needs[other].gpus <= free:
                    free -= needs[other].gpus
                    leases[other].append(lease)
                    left[other] -= 1
            left = {other: count for other, count in left.items() if count}
            lease += 1
        self.needs[job] = need
        self.leases |= leases
        return True

    def add_most(self, wanted: Mapping[int, Need], first: int, capacity: int, window: int, nodes: int) -> list[int]:
        """Accept those of several jobs that together count most, by a mixed-integer program in which accepted jobs keep
        the number of their leases and may change which these are. Return who was accepted.

        - `wanted`: what they need, by their numbers.
        - `first`: the number of the first lease that they can have.
        - `capacity`: the GPUs that there are.
        - `window`: the accepted jobs whose leases may change, of those that are in the way the ones with most slack.
        - `nodes`: after how many nodes of the search the best answer so far is taken.
        """
        wanted = {j: n for j, n in wanted.items() if n.gpus <= capacity and n.last - first + 1 >= n.leases}
        if not wanted:
            return []
        end = max(need.last for need in wanted.values())
        moved = sorted(
            (job for job, held in self.leases.items() if held and held[0] <= end),
            key=lambda job: (len(self.leases[job]) - self.needs[job].last, job),
        )[:window]
        needs = {job: self.needs[job]._replace(leases=len(self.leases[job])) for job in moved}
        end = max(need.last for need in (*needs.values(), *wanted.values()))
        rest = LeasePlan(self.needs, {job: held for job, held in self.leases.items() if job not in needs})
        jobs = [*needs, *wanted]
        found = _program(
            [*needs.values(), *wanted.values()], len(needs), first, rest._free(first, end, capacity), nodes
        )
        if found is None:
            return []
        for job, leases in zip(jobs, found, strict=True):
            if leases:
                self.needs[job] = needs.get(job) or wanted[job]
                self.leases[job] = leases
        return [job for job in wanted if self.leases.get(job)]

    def _free(self, first: int, last: int, capacity: int) -> np.ndarray:
        """Return the GPUs that nobody was promised in each of the leases from one to another."""
        free = np.full(last - first + 1, capacity)
        for job, held in self.leases.items():
            for lease in held:
                if first <= lease <= last:
                    free[lease - first] -= self.needs[job].gpus
        return free


def _program(needs: Sequence[Need], kept: int, first: int, free: np.ndarray, nodes: int) -> list[list[int]] | None:
    """Return the leases of each job, none for one that is not accepted, or None where no answer was found. The first
    `kept` of the jobs have to be accepted."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    width = len(free)
    pairs = [(j, k) for j, need in enumerate(needs) for k in range(min(need.last - first + 1, width))]
    size, count = len(pairs), len(needs)
    job, lease = np.array(pairs).T
    gpus = np.array([need.gpus for need in needs])
    leases = np.array([need.leases for need in needs])
    columns = np.arange(size)
    # variables: whether job j has lease k, for all pairs, then whether job j is accepted
    whole = csr_array(
        (np.r_[np.ones(size), -leases], (np.r_[job, np.arange(count)], np.r_[columns, size + np.arange(count)])),
        shape=(count, size + count),
    )
    room = csr_array((gpus[job], (lease, columns)), shape=(width, size + count))
    least = np.zeros(size + count)
    least[size : size + kept] = 1.0
    value = np.r_[np.zeros(size + kept), [-need.weight for need in needs[kept:]]]
    found = milp(
        value,
        constraints=[LinearConstraint(whole, 0, 0), LinearConstraint(room, -np.inf, free)],
        integrality=np.ones(size + count),
        bounds=Bounds(least, 1.0),
        options={"node_limit": nodes},
    )
    if found.x is None:
        return None
    held: list[list[int]] = [[] for _ in needs]
    for (j, k), has in zip(pairs, found.x, strict=False):
        if has > 0.5:
            held[j].append(first + k)
    return held
