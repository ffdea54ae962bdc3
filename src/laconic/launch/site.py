"""Where a launcher runs, and how it finds the machine on which the run meets."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError
from laconic.launch.request import Request
from laconic.network.interfaces import address_towards, host_towards

JOIN_SECONDS = 900.0
"""How long machines wait for each other at the start: people start them one by one."""


@dataclass(frozen=True)
class Site:
    """A launcher's address for the other machines, its name for people, its run folder."""

    address: str
    machine: str
    folder: Path
    nodes: int
    heartbeat_seconds: float

    @classmethod
    def of(cls, request: Request, folder: Path) -> Site:
        host, _ = request.endpoint
        return cls(address_towards(host), host_towards(host), folder, request.nodes, request.heartbeat_seconds)

    def log(self, rank: int) -> Path:
        return self.log_of("rank", rank)

    def log_of(self, kind: str, number: int) -> Path:
        return self.folder / "logs" / f"{kind}-{number}.log"


def await_host(host: str, port: int) -> None:
    """Wait until somebody listens there: the machines need not be started in any order."""
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise LaconicError(
        f"nothing answers at the rendezvous {host}:{port}. Start the same command on {host} too (it hosts the "
        f"meeting), and check that no firewall closes port {port}."
    )
