"""The processes of a benchmark: started in their places, reporting through rank 0, ended whatever happens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from laconic.launch.net import Namespace

PAYLOAD_SHARE = 1448 / 1514
"""The share of a full packet that is payload, headers of Ethernet, IP and TCP (with time stamps) taken off."""
STORE_PORT = 29500
"""The port of the store in a shaped network: each network has its own ports, so one number is enough."""


def environment(rank: int, size: int, store: tuple[str, int], home: Namespace | None) -> dict[str, str]:
    """Return the environment that a launcher would give this worker; without a place it runs on the loopback."""
    return {
        **os.environ,
        "MASTER_ADDR": store[0],
        "MASTER_PORT": str(store[1]),
        "GLOO_SOCKET_IFNAME": "lo" if home is None else home.interface,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }


def start(
    script: str,
    todo: Any,
    rank: int,
    size: int,
    store: tuple[str, int],
    home: Namespace | None,
    logs: Path,
    message: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start one worker, `script --as-worker todo` (as JSON), with a launcher's configuration in its environment if
    there is one."""
    command = [sys.executable, script, "--as-worker", json.dumps(todo)]
    with (logs / str(rank)).open("wb") as log:
        return subprocess.Popen(
            command if home is None else home.command(command),
            env=environment(rank, size, store, home) | dict(message or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the workers
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(**facts: Any) -> None:
    """Send a value from rank 0 to the parent."""
    if os.environ["RANK"] == "0":
        print(json.dumps(facts), flush=True)


def reports_of(workers: Sequence[subprocess.Popen[bytes]], logs: Path) -> Iterator[dict[str, Any]]:
    """Yield what rank 0 reports; if it ends before the caller stops reading, exit with the last lines of all logs."""
    for line in workers[0].stdout or ():
        if line.startswith(b"{"):
            yield json.loads(line)
    tails = {log.name: log.read_text(errors="replace").splitlines()[-8:] for log in sorted(logs.iterdir())}
    last_lines = "\n".join(f"rank {rank}: {line}" for rank, lines in tails.items() for line in lines)
    raise SystemExit(f"a worker ended before the measurement did; last lines of their logs:\n{last_lines}")


def end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
