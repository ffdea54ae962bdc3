"""A serving process that can be killed: `python -m tests.rpc.processes FOLDER EVERY_BYTES`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from laconic.rpc.directory import FileDirectory
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.keys import Keys
from tests.rpc.shards import shard

HEARTBEAT_SECONDS = 3.0
ROOT = Path(__file__).parents[2]


def endpoint(
    folder: Path,
    rank: int,
    life: int = 0,
    keys: Keys | None = None,
    unreachable_seconds: float = 60.0,
    resumes: bool = False,
) -> Endpoint:
    """Return the endpoint of a worker, or of a server with snapshots, that finds the others through this folder."""
    return Endpoint(
        keys or Keys.read(folder / "keys"),
        FileDirectory(folder / "directory"),
        rank,
        life,
        None,
        HEARTBEAT_SECONDS,
        snapshots=folder / "snapshots",
        unreachable_seconds=unreachable_seconds,
        resumes=resumes,
    )


def start(folder: Path, every_bytes: int) -> subprocess.Popen[str]:
    """Start a server of one shard and wait until it is ready."""
    if not (folder / "keys").exists():
        Keys.make().write(folder / "keys")
    command = [sys.executable, "-m", __name__, str(folder), str(every_bytes)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def main() -> None:
    folder, every_bytes = Path(sys.argv[1]), int(sys.argv[2])
    server = endpoint(folder, -1)
    server.host("s", shard(momentum=0.0), every_bytes=every_bytes)
    print("ready", flush=True)
    server.serve_until_done(2)
    server.close()


if __name__ == "__main__":
    main()
