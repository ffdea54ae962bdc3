"""The life of a job in a training service: parts that are deployed all or none, by components that may crash.

What a component has written to the replicated store survives it; what it only knows does not. Each call of `act` is one
step of one component, so that a crash can come between any two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from laconic.errors import ClusterError


class Stage(StrEnum):
    """How far a job has come on the platform, from its submission to its end."""

    QUEUED = "queued"
    DEPLOYING = "deploying"
    DOWNLOADING = "downloading"
    PROCESSING = "processing"
    STORING = "storing"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"

    @property
    def is_final(self) -> bool:
        """Whether nothing comes after it."""
        return self in (Stage.COMPLETED, Stage.FAILED, Stage.HALTED)


@dataclass
class Record:
    """What the store knows of a job.

    - `learners`: its workers, with a GPU each.
    - `work`: the steps that it has to do.
    - `stage`: where it is.
    - `verdict`: how it will end, once this is known and its parts are still to be removed.
    - `reserved`: whether its GPUs are kept for it.
    - `undoing`: whether what is deployed is being removed, to try again.
    - `attempts`: deployments that failed.
    - `saved`: the steps of the last checkpoint.
    """

    learners: int
    work: int
    stage: Stage = Stage.QUEUED
    verdict: Stage | None = None
    reserved: bool = False
    undoing: bool = False
    attempts: int = 0
    saved: int = 0


@dataclass
class Platform:
    """A service with its store, and the cluster that it deploys to.

    A *manager* keeps GPUs for whole jobs and starts a *guardian* for each; the guardian deploys a volume, a network
    policy, a helper and the learners. Where a part fails, or a guardian finds parts of another, it removes all and
    tries again, a few times. Learners go on from the last checkpoint when one of them crashes.

    - `gpus`: of the cluster.
    - `retries`: deployments that may fail before the job does.
    - `interval`: steps between checkpoints.
    - `gang`: whether GPUs are kept for whole jobs; without it each learner takes one when it is deployed, and jobs may
      wait for each other for ever.
    """

    gpus: int
    retries: int = 3
    interval: int = 5
    gang: bool = True
    store: dict[str, Record] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)  # what there is in the cluster, of each job
    done: dict[str, int] = field(default_factory=dict)  # steps that running learners have made
    guardians: dict[str, bool] = field(default_factory=dict)  # those that live, and whether all parts are their own

    def submit(self, name: str, learners: int, work: int) -> None:
        """Accept a job: it is in the store before anybody is told.

        - `name`: what tells it from others.
        - `learners`: its workers.
        - `work`: its steps.
        """
        if name in self.store or not 1 <= learners <= self.gpus:
            raise ClusterError(f"{name} is there already, or asks for other than 1 to {self.gpus} GPUs")
        self.store[name], self.parts[name] = Record(learners, work), []

    def halt(self, name: str) -> None:
        """Let a job end before it is done.

        - `name`: whose.
        """
        if not self.store[name].stage.is_final and self.store[name].verdict is None:
            self.store[name].verdict = Stage.HALTED

    @property
    def free(self) -> int:
        """GPUs that no learner has and no job keeps."""
        used = sum(
            record.learners if record.reserved else sum(part.startswith("learner") for part in self.parts[name])
            for name, record in self.store.items()
        )
        return self.gpus - used

    @property
    def components(self) -> list[str]:
        """The manager, and the guardian and the learners of every job that has them."""
        found = ["manager", *(f"guardian {name}" for name in self.guardians)]
        return found + [f"learners {name}" for name in self.done]

    def crash(self, component: str) -> None:
        """Let a component forget what it knows; it is started again by the cluster, or by the manager.

        - `component`: one of `components`.
        """
        kind, _, name = component.partition(" ")
        if kind == "guardian":
            del self.guardians[name]
        elif kind == "learners":
            self.done[name] = self.store[name].saved

    def act(self, component: str, fails: bool = False) -> bool:
        """Let a component make one step, and tell whether there was one to make.

        - `component`: one of `components`.
        - `fails`: whether the part that it deploys, if it does, is refused by the cluster.
        """
        kind, _, name = component.partition(" ")
        if kind == "manager":
            return self._manage()
        return self._guard(name, fails) if kind == "guardian" else self._learn(name)

    def _manage(self) -> bool:
        """Keep GPUs for a whole job, or start the guardian of one."""
        for name, record in self.store.items():
            if record.stage.is_final or name in self.guardians:
                continue
            if self.gang and not record.reserved and record.verdict is None:
                if record.learners > self.free:
                    continue
                record.reserved = True
            else:
                self.guardians[name] = not self.parts[name]
            return True
        return False

    def _guard(self, name: str, fails: bool) -> bool:
        """Bring a job one step further."""
        record, parts = self.store[name], self.parts[name]
        if record.verdict is not None:
            self._end(name, record.verdict)
        elif record.undoing:
            self._undo(name)
        elif record.stage is Stage.QUEUED:
            record.stage = Stage.DEPLOYING
        elif record.stage is Stage.DEPLOYING:
            if not self.guardians[name]:  # parts of a guardian that is no more
                record.undoing = True
            elif len(parts) == 3 + record.learners:
                record.stage = Stage.DOWNLOADING
            else:
                return self._deploy(name, fails)
        elif record.stage is Stage.DOWNLOADING:
            record.stage = Stage.PROCESSING
        elif record.stage is Stage.PROCESSING:
            if name not in self.done:
                self.done[name] = record.saved
            elif self.done[name] >= record.work:
                record.stage = Stage.STORING
            else:
                return False
        else:
            record.verdict = Stage.COMPLETED
        return True

    def _deploy(self, name: str, fails: bool) -> bool:
        """Deploy a job's next part, and return whether anything was done; where it fails, all is to be undone."""
        record, parts = self.store[name], self.parts[name]
        part = ("volume", "network policy", "helper")[len(parts)] if len(parts) < 3 else f"learner {len(parts) - 3}"
        if part.startswith("learner") and not record.reserved and not self.free:
            return False  # and what is there stays
        if fails:
            record.undoing = True
        else:
            parts.append(part)
        return True

    def _undo(self, name: str) -> None:
        """Remove a part; when none is left, try again or give up."""
        record, parts = self.store[name], self.parts[name]
        if parts:
            parts.pop()
            return
        record.undoing, self.guardians[name] = False, True
        record.attempts += 1
        if record.attempts > self.retries:
            record.verdict = Stage.FAILED

    def _end(self, name: str, verdict: Stage) -> None:
        """Remove a part; when none is left, write down how the job ended."""
        record, parts = self.store[name], self.parts[name]
        self.done.pop(name, None)
        if parts:
            parts.pop()
            return
        record.stage, record.reserved = verdict, False
        del self.guardians[name]

    def _learn(self, name: str) -> bool:
        """Make a step together, and write a checkpoint where it is due."""
        record = self.store[name]
        if self.done[name] >= record.work:
            return False
        self.done[name] += 1
        if self.done[name] % self.interval == 0 or self.done[name] == record.work:
            record.saved = self.done[name]
        return True
