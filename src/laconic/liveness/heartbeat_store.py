"""The board: keys of the run's store that hold a heartbeat slot per rank and one slot for the first loss.

All slots exist from the start, because reading a key that is missing blocks; so one request reads all ranks, however
many they are.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from laconic.liveness.detection import SILENT, Beat, Lost

# A frozen store blocks its callers whatever timeout they ask for (and a timeout that fires logs a page of C++ frames),
# so callers run in a thread of their own and are watched from another: see `watch.py`.
_FOREVER = timedelta(days=365)


class Board:
    """A separate connection to the board's keys, because a store client that waits blocks all other users of it."""

    def __init__(self, host: str, port: int, prefix: str, size: int) -> None:
        self._store: Any = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_FOREVER)
        self._lost = f"{prefix}/lost"
        self._slots = [f"{prefix}/beat/{rank}" for rank in range(size)]
        self._create(f"{prefix}/created-by", f"{prefix}/ready")

    def _create(self, claim: str, ready: str) -> None:
        """Let the first process write the empty slots; no beat can be written before they are ready."""
        me = uuid.uuid4().hex
        if self._store.compare_set(claim, "", me) == me.encode():
            keys = [*self._slots, self._lost]
            self._store.multi_set(keys, [SILENT.decode()] * len(keys))
            self._store.set(ready, "1")
        self._store.wait([ready])

    def write(self, rank: int, beat: Beat) -> None:
        """Write a rank's heartbeat."""
        self._store.set(self._slots[rank], beat.encode())

    def read(self) -> tuple[list[Beat], Lost | None]:
        """Return every rank's last beat, and the loss that was announced, if any."""
        *beats, lost = self._store.multi_get([*self._slots, self._lost])
        return [Beat.decode(data) for data in beats], None if lost == SILENT else Lost.decode(lost)

    def announce(self, lost: Lost) -> Lost:
        """Announce a loss; the first announcement holds, and every caller gets that one back."""
        return Lost.decode(self._store.compare_set(self._lost, SILENT.decode(), lost.encode()))
