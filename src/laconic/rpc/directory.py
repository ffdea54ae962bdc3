"""Where actors are found: a directory maps an address to the endpoint of the process that serves it now."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from laconic.errors import WorkerLost
from laconic.files import replacing

_LOOK_SECONDS = 0.05


class Directory(Protocol):
    """A map from addresses to endpoints: servers publish, again after each restart; clients look up, again when a
    server is silent."""

    def publish(self, address: str, endpoint: str) -> None: ...
    def find(self, address: str) -> str | None:
        """Return the endpoint that was published last for this address, if any was."""
        ...


class OwnDirectory:
    """A directory within one process, for a run that has only one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def publish(self, address: str, endpoint: str) -> None:
        self._known[address] = endpoint

    def find(self, address: str) -> str | None:
        return self._known.get(address)


class FileDirectory:
    """A directory kept as a folder with a file per address, for processes of one host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, address: str, endpoint: str) -> None:
        with replacing(self._folder / quote(address, safe="")) as beside:
            beside.write_text(endpoint)

    def find(self, address: str) -> str | None:
        try:
            return (self._folder / quote(address, safe="")).read_text()
        except FileNotFoundError:
            return None


class StoreDirectory:
    """A directory kept in the run's store, which belongs to the launcher and outlives workers and servers."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        from torch.distributed import TCPStore

        forever = timedelta(days=365)
        # A separate connection, because a store client that waits blocks all other users of it.
        self._store: Any = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=forever)
        self._prefix = prefix

    def publish(self, address: str, endpoint: str) -> None:
        self._store.set(f"{self._prefix}/{address}", endpoint)

    def find(self, address: str) -> str | None:
        key = f"{self._prefix}/{address}"
        if not self._store.check([key]):  # asking for a key that is missing would wait
            return None
        found: bytes = self._store.get(key)
        return found.decode()


def look_up(directory: Directory, address: str, seconds: float) -> str:
    """Wait until an address is published, at most for so many seconds, and return its endpoint."""
    deadline = time.monotonic() + seconds
    while (endpoint := directory.find(address)) is None:
        if time.monotonic() > deadline:
            raise WorkerLost(
                f"nobody serves {address!r} after {seconds:g} s: its server has not started. Look at its log."
            )
        time.sleep(_LOOK_SECONDS)
    return endpoint
