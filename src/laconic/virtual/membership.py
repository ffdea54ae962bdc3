"""Changes of membership as data: virtual workers that join later, leave, die and return.

A worker that *dies* stops at that moment, in the middle of whatever it does; the others notice when its heartbeat is
missing. One that *leaves* ends after the step it is in, and announces it. One that *returns* runs the script from its
beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from laconic.errors import LaconicError
from laconic.units import seconds

EventKind = Literal["join", "leave", "die", "return"]
_FOLLOWS: dict[str | None, tuple[str, ...]] = {
    None: ("join", "leave", "die"),
    "join": ("leave", "die"),
    "return": ("leave", "die"),
    "leave": ("return",),
    "die": ("return",),
}


@dataclass(frozen=True)
class Event:
    """A change of membership: what happens to which worker, and when.

    - `at_seconds`: the virtual time.
    - `worker`: the worker's rank.
    - `what`: `"die"` (it stops at once; the others notice its silence), `"leave"` (it ends after the step it is in, and
      says so), `"join"` (it begins only now) or `"return"` (it runs the function afresh after it has died or left).
    """

    at_seconds: float
    worker: int
    what: EventKind


@dataclass(frozen=True)
class Life:
    """One life of a worker: when it begins, when it ends, and whether the worker then leaves (True) or dies (False)."""

    begin_seconds: float = 0.0
    end_seconds: float = math.inf
    leaves_gracefully: bool = False


def read_events(rows: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Read events from TOML rows such as `{at = "2s", worker = 3, what = "die"}`."""
    return tuple(Event(seconds(row["at"]), int(row["worker"]), row["what"]) for row in rows)


def lives(events: Sequence[Event], workers: int) -> list[list[Life]]:
    """Return each worker's lives in order; raise for events that contradict each other."""
    by_worker: list[list[Life]] = [[] for _ in range(workers)]
    last_event: dict[int, str] = {}
    begin: dict[int, float] = dict.fromkeys(range(workers), 0.0)
    for event in sorted(events, key=lambda e: e.at_seconds):
        if not 0 <= event.worker < workers or not 0 <= event.at_seconds < math.inf:
            raise LaconicError(f"{event} is not possible: there are workers 0 to {workers - 1}, and times from 0 on")
        possible = _FOLLOWS[last_event.get(event.worker)]
        if event.what not in possible:
            so_far = f"after its {last_event[event.worker]}" if event.worker in last_event else "at first"
            raise LaconicError(
                f"worker {event.worker} cannot {event.what} at {event.at_seconds:g} s: {so_far} it can only "
                f"{' or '.join(possible)}"
            )
        last_event[event.worker] = event.what
        if event.what in ("leave", "die"):
            life = Life(begin.pop(event.worker), event.at_seconds, leaves_gracefully=event.what == "leave")
            by_worker[event.worker].append(life)
        else:
            begin[event.worker] = event.at_seconds
    for worker, since in begin.items():
        by_worker[worker].append(Life(since))
    return by_worker


def lives_from(now_seconds: float, by_worker: Sequence[Sequence[Life]]) -> list[list[Life]]:
    """Return the lives that remain when all workers start again at this time."""
    return [
        [
            Life(max(life.begin_seconds, now_seconds), life.end_seconds, life.leaves_gracefully)
            for life in worker_lives
            if life.end_seconds > now_seconds
        ]
        for worker_lives in by_worker
    ]
