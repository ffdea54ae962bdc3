"""Who is there when: virtual workers that come later, leave, die and come back, as data.

A worker that *dies* falls silent at that moment, in the middle of whatever it does; the others notice when its
heartbeat stays away. One that *leaves* ends after the step it is in, and says so. One that *returns* runs the script
afresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from laconic.errors import LaconicError
from laconic.units import seconds

What = Literal["join", "leave", "die", "return"]
_FOLLOWS: dict[str | None, tuple[str, ...]] = {
    None: ("join", "leave", "die"),
    "join": ("leave", "die"),
    "return": ("leave", "die"),
    "leave": ("return",),
    "die": ("return",),
}


@dataclass(frozen=True)
class Event:
    """At this time, this happens to this worker."""

    at_seconds: float
    worker: int
    what: What


@dataclass(frozen=True)
class Life:
    """From when to when a worker is there, and whether it says goodbye."""

    begin_seconds: float = 0.0
    end_seconds: float = math.inf
    says_goodbye: bool = False


def read_events(rows: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """From TOML rows such as `{at = "2s", worker = 3, what = "die"}`."""
    return tuple(Event(seconds(row["at"]), int(row["worker"]), row["what"]) for row in rows)


def lives(events: Sequence[Event], workers: int) -> list[list[Life]]:
    """Each worker's lives in order; refuses a story that cannot be."""
    told: list[list[Life]] = [[] for _ in range(workers)]
    last: dict[int, str] = {}
    begin: dict[int, float] = dict.fromkeys(range(workers), 0.0)
    for event in sorted(events, key=lambda e: e.at_seconds):
        if not 0 <= event.worker < workers or not 0 <= event.at_seconds < math.inf:
            raise LaconicError(f"{event}: there are workers 0 to {workers - 1}, and times from 0 on")
        possible = _FOLLOWS[last.get(event.worker)]
        if event.what not in possible:
            so_far = f"after its {last[event.worker]}" if event.worker in last else "at first"
            raise LaconicError(
                f"worker {event.worker} cannot {event.what} at {event.at_seconds:g} s: {so_far} it can only "
                f"{' or '.join(possible)}"
            )
        last[event.worker] = event.what
        if event.what in ("leave", "die"):
            life = Life(begin.pop(event.worker), event.at_seconds, says_goodbye=event.what == "leave")
            told[event.worker].append(life)
        else:
            begin[event.worker] = event.at_seconds
    for worker, since in begin.items():
        told[worker].append(Life(since))
    return told


def lives_from(now_seconds: float, told: Sequence[Sequence[Life]]) -> list[list[Life]]:
    """What is left of the story when everybody starts again at this time."""
    return [
        [
            Life(max(life.begin_seconds, now_seconds), life.end_seconds, life.says_goodbye)
            for life in of_one
            if life.end_seconds > now_seconds
        ]
        for of_one in told
    ]
