"""The memory of a GPU as lanes: what models keep, and slots in which iterations run one after another."""

from __future__ import annotations

from laconic.errors import ClusterError


class Lanes:
    """One GPU's memory. What each job keeps between iterations stays; what an iteration needs beside is taken from the
    job's lane, which is as large as the neediest of its jobs. Lanes run at the same time, the jobs of a lane in turns:
    so whoever is admitted can run any iteration, and nothing is ever evicted.

    - `memory_bytes`: of the GPU.
    """

    def __init__(self, memory_bytes: float) -> None:
        self.memory_bytes = memory_bytes
        self.persistent: dict[int, float] = {}
        self.ephemeral: dict[int, float] = {}
        self.members: dict[int, list[int]] = {}  # the jobs of each lane, by its number
        self._next = 0

    def size(self, lane: int) -> float:
        """Return a lane's bytes.

        - `lane`: its number.
        """
        return max(self.ephemeral[job] for job in self.members[lane])

    @property
    def used_bytes(self) -> float:
        """All that is set aside, of which nothing can be given to another job."""
        return sum(self.persistent.values()) + sum(self.size(lane) for lane in self.members)

    def lane_of(self, job: int) -> int:
        """Return the lane of a job.

        - `job`: one that was admitted.
        """
        return next(lane for lane, jobs in self.members.items() if job in jobs)

    def admit(self, job: int, persistent: float, ephemeral: float) -> bool:
        """Admit a job, and tell whether it fits: into a lane of its own; else into the smallest lane that is large
        enough; else into the largest of the others, which grows.

        - `job`: its number.
        - `persistent`, `ephemeral`: what it keeps, and what an iteration needs beside that.
        """
        if job in self.persistent:
            raise ClusterError(f"job {job} has been admitted to this GPU already")
        free = self.memory_bytes - self.used_bytes - persistent
        sizes = {lane: self.size(lane) for lane in self.members}
        if ephemeral <= free:
            lane, self._next = self._next, self._next + 1
            self.members[lane] = []
        elif wide := [lane for lane, size in sizes.items() if size >= ephemeral and free >= 0]:
            lane = min(wide, key=lambda lane: (sizes[lane], lane))
        elif narrow := [lane for lane, size in sizes.items() if size < ephemeral and ephemeral - size <= free]:
            lane = max(narrow, key=lambda lane: (sizes[lane], -lane))
        else:
            return False
        self.members[lane].append(job)
        self.persistent[job], self.ephemeral[job] = persistent, ephemeral
        return True

    def leave(self, job: int) -> None:
        """Let a job go; its lane shrinks, or closes with its last job.

        - `job`: one that was admitted.
        """
        lane = self.lane_of(job)
        self.members[lane].remove(job)
        if not self.members[lane]:
            del self.members[lane]
        del self.persistent[job], self.ephemeral[job]
