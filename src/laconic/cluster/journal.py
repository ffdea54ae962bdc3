"""The journal of a run: every decision with the state and the events that it was made upon, a line each, on disk.

It is what a controller remembers when it is started again, and it can be replayed through the policy: from the same
states and events the same policy makes the same decisions, whoever carried them out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laconic.cluster.books import Books
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.policy import Policy
from laconic.cluster.state import (
    Advanced,
    Arrival,
    Completion,
    Event,
    HostBack,
    HostLost,
    State,
    Wake,
)
from laconic.errors import ClusterError
from laconic.files import make_folder

_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (Arrival, Completion, Advanced, HostLost, HostBack, Wake)}
_COLUMNS = ("since", "base", "speed", "held", "attained", "executed", "first_start", "restarts")


class Journal:
    """A file to whose end entries are written; each is on the disk when it was written.

    - `path`: the file. One that is there already is continued, without a last line that was not written to its end.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.entries = read(path) if path.is_file() else []
        whole = "".join(f"{json.dumps(entry)}\n" for entry in self.entries).encode()
        if path.is_file() and path.stat().st_size != len(whole):
            path.write_bytes(whole)
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **facts: Any) -> None:
        """Write an entry.

        - `kind`: what happened.
        - `facts`: what is to be known of it, as JSON has it.
        """
        entry = {"kind": kind, **facts}
        self.entries.append(entry)
        self._file.write(f"{json.dumps(entry)}\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def decided(self, books: Books, now: float, events: Sequence[Event], decision: Decision) -> None:
        """Write a decision before it is carried out.

        - `books`: what it was made upon.
        - `now`: when it was made.
        - `events`: what had happened.
        - `decision`: what is wanted.
        """
        told = {event.job for event in events if isinstance(event, Arrival | Completion | Advanced)}
        self.write(
            "decided",
            now=now,
            events=[[type(event).__name__, *event] for event in events],
            active=list(books.active),
            running=_written(books.running),
            lost=sorted(books.room.lost),
            rows={str(job): row_of(books, job) for job in sorted({*books.active, *told})},
            grants=_written(decision.grants),
            wake=decision.wake,
        )


def row_of(books: Books, job: int) -> list[float]:
    """Return what the books have of a job, as numbers."""
    return [*(float(getattr(books.known, name)[job]) for name in _COLUMNS), *map(float, books.parts[:, job])]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a journal; a last line that was not written to its end is none.

    - `path`: the file.
    """
    entries = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ClusterError(f"line {number} of {path} is no entry of a journal; it was changed") from error
    return entries


@dataclass(frozen=True)
class Replayed:
    """A decision of a journal, made once more.

    - `now`: when it was made.
    - `events`: what had happened.
    - `state`: what it was made upon.
    - `logged`: what was decided then.
    - `decided`: what the policy decides.
    - `memory`: what the policy remembers now.
    """

    now: float
    events: tuple[Event, ...]
    state: State
    logged: Decision
    decided: Decision
    memory: Any

    @property
    def is_equal(self) -> bool:
        """Whether both are the same."""
        same = dict(self.logged.grants) == dict(self.decided.grants)
        return same and self.logged.wake == self.decided.wake


def replayed(
    entries: Iterable[Mapping[str, Any]], jobs: Sequence[Job], cluster: Cluster, policy: Policy
) -> Iterator[Replayed]:
    """Yield every decision of a journal, made once more by a policy.

    - `entries`: of the journal.
    - `jobs`: the jobs, in the order of their arrivals.
    - `cluster`: the hosts.
    - `policy`: who decides.
    """
    memory = policy.init()
    for entry in entries:
        if entry["kind"] == "decided":
            books = books_at(entry, jobs, cluster)
            state = books.state(entry["now"])
            events = events_of(entry)
            decision, memory = policy.decide(state, events, memory)
            logged = Decision(grants_of(entry["grants"]), entry["wake"])
            yield Replayed(entry["now"], tuple(events), state, logged, decision, memory)


def books_at(entry: Mapping[str, Any], jobs: Sequence[Job], cluster: Cluster) -> Books:
    """Return the books upon which a decision was made.

    - `entry`: the decision's.
    - `jobs`: the jobs, in the order of their arrivals.
    - `cluster`: the hosts.
    """
    books = Books(jobs, cluster)
    for job in entry["active"]:
        books.active.add(job)
    for job, row in entry["rows"].items():
        enter_row(books, int(job), row)
    for host in entry["lost"]:
        books.room.lose(host)
    for job, grant in grants_of(entry["running"]).items():
        books.running[job] = grant
        books.room.take(jobs[job], grant)
        if books.known.speed[job] > 0:
            books.communicating[job] = 0.0
    return books


def enter_row(books: Books, job: int, row: Sequence[float]) -> None:
    """Write into the books what `row_of` read from others."""
    for name, value in zip(_COLUMNS, row, strict=False):
        getattr(books.known, name)[job] = value
    books.parts[:, job] = np.asarray(row[len(_COLUMNS) :])


def events_of(entry: Mapping[str, Any]) -> list[Event]:
    """Return the events of a decision."""
    return [_EVENTS[kind](*(tuple(x) if isinstance(x, list) else x for x in facts)) for kind, *facts in entry["events"]]


def _written(grants: Mapping[int, Grant]) -> list[list[Any]]:
    return [
        [int(job), [[int(host), int(device), float(share)] for host, device, share in g.slots], g.batch, g.clock]
        for job, g in grants.items()
    ]


def grants_of(written: Iterable[Sequence[Any]]) -> dict[int, Grant]:
    """Return an allocation of a journal."""
    return {
        job: Grant(tuple(Slot(host, device, share) for host, device, share in slots), batch, clock)
        for job, slots, batch, clock in written
    }
