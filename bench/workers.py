"""The processes of a benchmark: started in their places, heard through rank 0, ended whatever happens."""

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

STORE_PORT = 29500
"""Where workers of a shaped network meet: each network has its own ports, so one number will do."""


def environment(rank: int, size: int, store: tuple[str, int], home: Namespace | None) -> dict[str, str]:
    """What a launcher would tell this worker; without a home it lives on the loopback."""
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
    """One worker: `script --as-worker todo` (as JSON), with a launcher's letter in its environment if there is one."""
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


def tell(**facts: Any) -> None:
    """From a worker: rank 0 speaks to the parent."""
    if os.environ["RANK"] == "0":
        print(json.dumps(facts), flush=True)


def listen(workers: Sequence[subprocess.Popen[bytes]], logs: Path) -> Iterator[dict[str, Any]]:
    """What rank 0 tells, until there is nothing more; then everybody's last words."""
    for line in workers[0].stdout or ():
        if line.startswith(b"{"):
            yield json.loads(line)
    tails = {log.name: log.read_text(errors="replace").splitlines()[-8:] for log in sorted(logs.iterdir())}
    said = "\n".join(f"rank {rank}: {line}" for rank, lines in tails.items() for line in lines)
    raise SystemExit(f"a worker ended before the measurement did; their last words:\n{said}")


def end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
