"""Snapshots of what a worker read, kept on the server until its next push: for rules that use what changed since.

A read's ticket is its version, which the push carries anyway, so that nothing more is sent. A ticket that a restarted
server has lost is None: the rule decides what to do without it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from laconic.architecture.server.store import Store

Snapshot = list[Tensor]


def issue(store: Store, worker: int, make: Callable[[], Snapshot]) -> None:
    """Keep a snapshot of what this worker reads now; workers that read one version share one snapshot."""
    tickets: dict[str, dict[str, Snapshot]] = store.memory.setdefault("tickets", {})
    version = str(store.version)
    kept = next((of_one[version] for of_one in tickets.values() if version in of_one), None)
    tickets.setdefault(str(worker), {})[version] = make() if kept is None else kept


def issue_first(store: Store, make: Callable[[], Snapshot]) -> None:
    """Keep the first values for all members, before the first update: all have started from them."""
    if store.version == 0 and "tickets" not in store.memory:
        for worker in store.members:
            issue(store, worker, make)


def redeem(store: Store, worker: int, version: int) -> Snapshot | None:
    """Return the snapshot of what this worker read at that version, and drop those of its earlier reads."""
    mine: dict[str, Snapshot] = store.memory.get("tickets", {}).get(str(worker), {})
    for old in [v for v in mine if int(v) < version]:
        del mine[old]
    return mine.get(str(version))


def forget(store: Store, worker: int) -> None:
    """Drop all snapshots of a worker that is lost."""
    store.memory.get("tickets", {}).pop(str(worker), None)
