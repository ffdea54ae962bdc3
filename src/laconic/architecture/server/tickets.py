"""What a worker read, kept on the server until its next push: for rules that ask what has happened since.

A read's ticket is its version, which the push carries anyway, so that nothing more travels. A ticket that a restarted
server has forgotten is None: the rule decides what an unknown past means.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from laconic.architecture.server.store import Store

Snapshot = list[Tensor]


def issue(store: Store, worker: int, make: Callable[[], Snapshot]) -> None:
    """This worker reads now; who reads one version shares one snapshot."""
    tickets: dict[str, dict[str, Snapshot]] = store.memory.setdefault("tickets", {})
    version = str(store.version)
    kept = next((of_one[version] for of_one in tickets.values() if version in of_one), None)
    tickets.setdefault(str(worker), {})[version] = make() if kept is None else kept


def issue_first(store: Store, make: Callable[[], Snapshot]) -> None:
    """Before the first update: all members have begun from the values they were given."""
    if store.version == 0 and "tickets" not in store.memory:
        for worker in store.members:
            issue(store, worker, make)


def redeem(store: Store, worker: int, version: int) -> Snapshot | None:
    """What this worker read at that version; what it read before is let go."""
    mine: dict[str, Snapshot] = store.memory.get("tickets", {}).get(str(worker), {})
    for old in [v for v in mine if int(v) < version]:
        del mine[old]
    return mine.get(str(version))


def forget(store: Store, worker: int) -> None:
    store.memory.get("tickets", {}).pop(str(worker), None)
