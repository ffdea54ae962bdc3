"""The rendezvous of a fixed number of hosts, which all join before an attempt and stay for it.

The host of the store has number 0 in every attempt and lets the others in. Each that arrives takes a number of arrival,
keeps a counter under it alive, and waits for its place; one that has died while it waited gets none. All values are
plain text, because whoever reaches the store can write to it (torch's own rendezvous unpickles what it finds there).
"""

from __future__ import annotations

import json
import time
from itertools import count

from torch.distributed import HashStore, PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

_POLL_SECONDS = 0.1
_STALE_SECONDS = 10.0  # without a change of its counter, who has arrived is not waiting any more


class FixedRendezvous(RendezvousHandler):
    """One host's view of the rendezvous; `store` is None where the run has one host."""

    def __init__(self, store: Store | None, is_host: bool, nodes: int, address: str, join_seconds: float) -> None:
        self._store, self._is_host, self._nodes, self._address = store, is_host, nodes, address
        self._join_seconds = join_seconds
        self._round = -1
        self._placed: set[int] = set()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all hosts have joined, and return this one's number, and a store that is new to all of them."""
        here = RendezvousStoreInfo(self._address, 0)  # the agent makes the workers' store itself
        if self._store is None:
            return RendezvousInfo(HashStore(), 0, 1, here)
        deadline = time.monotonic() + self._join_seconds
        try:
            number = self._admit(self._store, deadline) if self._is_host else self._arrive(self._store, deadline)
        except RendezvousTimeoutError:
            raise
        except RuntimeError as error:  # torch's DistError: the host of the store is gone
            raise RendezvousConnectionError(str(error)) from error
        return RendezvousInfo(PrefixStore(f"attempt/{self._round}", self._store), number, self._nodes, here)

    def _admit(self, store: Store, deadline: float) -> int:
        """Give places to the hosts that wait now, as soon as they are all but this one; return 0."""
        changed: dict[int, tuple[bytes, float]] = {}
        while time.monotonic() < deadline:
            now = time.monotonic()
            for arrival in range(1, store.add("arrivals", 0) + 1):
                key = f"waiting/{arrival}"
                beat = store.get(key) if store.check([key]) else None
                if beat is not None and (arrival not in changed or beat != changed[arrival][0]):
                    changed[arrival] = (beat, now)
            waiting = [a for a, (_, at) in changed.items() if a not in self._placed and now - at < _STALE_SECONDS]
            if len(waiting) >= self._nodes - 1:
                self._round += 1
                for number, arrival in enumerate(sorted(waiting)[: self._nodes - 1], start=1):
                    self._placed.add(arrival)
                    store.set(f"place/{arrival}", json.dumps([self._round, number]))
                return 0
            time.sleep(_POLL_SECONDS)
        raise RendezvousTimeoutError

    def _arrive(self, store: Store, deadline: float) -> int:
        """Wait for a place, and return its number."""
        arrival = store.add("arrivals", 1)
        for beat in count():
            store.set(f"waiting/{arrival}", str(beat))
            if store.check([f"place/{arrival}"]):
                self._round, number = map(int, json.loads(store.get(f"place/{arrival}")))
                return number
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError
            time.sleep(_POLL_SECONDS)
        raise AssertionError

    def num_nodes_waiting(self) -> int:
        """Return 0: asking a store that is cut off would block the agent, and a loss is announced elsewhere."""
        return 0

    @property
    def use_agent_store(self) -> bool:
        """Return True: the workers' store lives in an agent of ours, see `Agent._rendezvous`."""
        return True

    def get_backend(self) -> str:
        return "laconic"

    def get_run_id(self) -> str:
        return "laconic"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: the store ends with the launcher of its host, and that is noticed."""

    def shutdown(self) -> bool:
        return True
