"""The corner of the run's store where liveness is written: a slot per rank and one for the first loss.

All slots exist from the start, because reading a key that is missing blocks; so one request reads everybody, however
many they are.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from laconic.liveness.beats import SILENT, Beat, Lost

# A frozen store blocks its callers whatever timeout they ask for (and a timeout that fires logs a page of C++ frames),
# so callers run in a thread of their own and are watched from another: see `watch.py`.
_FOREVER = timedelta(days=365)


class Board:
    """A connection of its own to the board: a client that is waiting serves nobody else."""

    def __init__(self, host: str, port: int, prefix: str, size: int) -> None:
        self._store: Any = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_FOREVER)
        self._lost = f"{prefix}/lost"
        self._slots = [f"{prefix}/beat/{rank}" for rank in range(size)]
        self._create(f"{prefix}/created-by", f"{prefix}/ready")

    def _create(self, claim: str, ready: str) -> None:
        """Whoever comes first writes the empty slots; nobody can have written a beat before they are ready."""
        me = uuid.uuid4().hex
        if self._store.compare_set(claim, "", me) == me.encode():
            keys = [*self._slots, self._lost]
            self._store.multi_set(keys, [SILENT.decode()] * len(keys))
            self._store.set(ready, "1")
        self._store.wait([ready])

    def write(self, rank: int, beat: Beat) -> None:
        self._store.set(self._slots[rank], beat.encode())

    def read(self) -> tuple[list[Beat], Lost | None]:
        """Everybody's last beat, and the loss that was announced, if any."""
        *beats, lost = self._store.multi_get([*self._slots, self._lost])
        return [Beat.decode(data) for data in beats], None if lost == SILENT else Lost.decode(lost)

    def announce(self, lost: Lost) -> Lost:
        """Make a loss known; the first announcement holds, and is what everybody gets back."""
        return Lost.decode(self._store.compare_set(self._lost, SILENT.decode(), lost.encode()))
