"""The context of a launcher: its host and run folder, and how it reaches the host of the rendezvous."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError
from laconic.launch.request import Request
from laconic.network.interfaces import address_towards, host_towards

JOIN_SECONDS = 900.0
"""How long hosts wait for each other at the start: people start the command on them one by one."""


@dataclass(frozen=True)
class LaunchContext:
    """What a launcher knows of its host and run: its address for other hosts, its name for people, its run folder."""

    address: str
    host_name: str
    folder: Path
    nodes: int
    heartbeat_seconds: float

    @classmethod
    def of(cls, request: Request, folder: Path) -> LaunchContext:
        """Return the context of a run on this host."""
        host, _ = request.endpoint
        return cls(address_towards(host), host_towards(host), folder, request.nodes, request.heartbeat_seconds)

    def log(self, rank: int) -> Path:
        """Return the path of a worker's log."""
        return self.log_of("rank", rank)

    def log_of(self, kind: str, number: int) -> Path:
        """Return the path of the log of a worker (`rank`) or a server (`server`)."""
        return self.folder / "logs" / f"{kind}-{number}.log"


def wait_for_host(host: str, port: int) -> None:
    """Wait until the rendezvous accepts connections: the hosts may be started in any order."""
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise LaconicError(
        f"nothing answers at the rendezvous {host}:{port}. Start the same command on {host} too (it hosts the "
        f"rendezvous), and check that no firewall closes port {port}."
    )
