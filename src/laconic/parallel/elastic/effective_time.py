"""How much of the time training goes forward while nodes fail: a replay of failures with measured throughputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Recovery:
    """What a system does about a failure, by its measured times.

    - `samples_per_second`: by number of nodes; the smallest number's holds for fewer.
    - `samples_per_step`: the global batch.
    - `restart_seconds`: until training goes on, by the number of nodes that are left.
    - `checkpoint_steps`: steps between two checkpoints, to which training falls back; None where nodes hold copies of
      each other's state, so that only the step in which the failure happens is lost.
    - `checkpoint_seconds`: for which training stands still at each.
    - `useful_share`: of a step that is no redundant computation.
    """

    samples_per_second: Mapping[int, float]
    samples_per_step: int
    restart_seconds: Mapping[int, float]
    checkpoint_steps: int | None = None
    checkpoint_seconds: float = 0.0
    useful_share: float = 1.0

    def __post_init__(self) -> None:
        if not self.samples_per_second or not self.restart_seconds or not 0 < self.useful_share <= 1:
            raise LaconicError("a recovery needs throughputs and restart times, and a useful share in (0, 1]")

    def step_seconds(self, nodes: int) -> float:
        return self.samples_per_step / _at(self.samples_per_second, nodes)


@dataclass(frozen=True)
class TimeShares:
    """Where the time went, in shares of all time.

    - `effective`: steps that count.
    - `redundant`: computation inside these that only guards against failures.
    - `lost`: steps that were undone, or not finished.
    - `checkpointing`, `restarting`: training stood still.
    """

    effective: float
    redundant: float
    lost: float
    checkpointing: float
    restarting: float


def replay_failures(recovery: Recovery, nodes: int, failures: Sequence[float], until_seconds: float) -> TimeShares:
    """Return where the time goes when nodes fail one after the other, and none is replaced.

    A failure during a restart begins it again. With checkpoints, one is written after the first step of a restart, so
    that the new division of the model is durable, and then whenever the number of steps is a multiple.

    - `recovery`: of the system.
    - `nodes`: at the beginning.
    - `failures`: the times at which a node fails, in seconds and ascending.
    - `until_seconds`: the end.
    """
    spent = dict.fromkeys((field.name for field in fields(TimeShares)), 0.0)
    now, steps = 0.0, 0
    unsaved: list[float] = []  # the times of steps since the last checkpoint
    for event in [*failures, until_seconds]:
        step = recovery.step_seconds(nodes)
        fresh = now > 0  # the first step after a restart
        while now < event:
            if now + step > event:
                spent["lost"] += event - now
                now = event
                break
            now, steps = now + step, steps + 1
            unsaved.append(step)
            due = recovery.checkpoint_steps is None or fresh or steps % recovery.checkpoint_steps == 0
            stands = recovery.checkpoint_seconds if due and recovery.checkpoint_steps is not None else 0.0
            fresh = False
            spent["checkpointing"] += min(stands, event - now)
            now += min(stands, event - now)
            if due and (now < event or not stands):
                spent["effective"] += sum(unsaved)
                unsaved.clear()
        if event == until_seconds:  # training goes on: what is not saved yet is not lost
            spent["effective"] += sum(unsaved)
            break
        spent["lost"] += sum(unsaved)
        steps -= len(unsaved)
        unsaved.clear()
        nodes -= 1
        later = next((time for time in [*failures, until_seconds] if time > event), until_seconds)
        restart = min(_at(recovery.restart_seconds, nodes), later - event)
        spent["restarting"] += restart
        now = event + restart
    spent["redundant"] = spent["effective"] * (1 - recovery.useful_share)
    spent["effective"] *= recovery.useful_share
    return TimeShares(**{name: seconds / until_seconds for name, seconds in spent.items()})


def _at(table: Mapping[int, float], nodes: int) -> float:
    """Return the entry for so many nodes, or that of the nearest number that has one."""
    return table[min(table, key=lambda known: (abs(known - nodes), known))]
