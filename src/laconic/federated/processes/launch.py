"""Run a federated sentence between processes of this machine: a server, and processes that are home to clients."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from laconic.errors import LaconicError
from laconic.federated.federation import Federation
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.processes import member
from laconic.federated.processes.coordinator import ADDRESS, OBSERVER, outcome_of
from laconic.federated.processes.member import SERVER_NUMBER, Setting
from laconic.federated.strategy import FederatedStrategy
from laconic.files import make_folder
from laconic.rpc.snapshots import Snapshots
from laconic.worker import ActorMessage

_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 10.0


def run_processes(
    federation: Federation,
    strategy: str | FederatedStrategy,
    folder: Path,
    *,
    processes: int = 2,
    heartbeat_seconds: float = 20.0,
    restarts: int = 3,
    timeout_seconds: float = float("inf"),
) -> FederatedOutcome:
    """Train between processes, and return what came of it: the parameters of the same run on virtual clients.

    - `folder`: of the run: keys, the server's snapshots, clients' memory, logs. A run that was cut off goes on.
    - `processes`: how many are home to clients.
    - `heartbeat_seconds`: after how much silence a process counts as lost.
    - `restarts`: how often processes that die are started again, all together.
    - `timeout_seconds`: after which the run is given up.
    """
    folder = make_folder(folder.absolute())
    made = FederatedStrategy.parse(strategy) if isinstance(strategy, str) else strategy
    setting = Setting(federation, str(made), processes, heartbeat_seconds)
    setting.write(folder)
    shutil.rmtree(folder / "directory", ignore_errors=True)  # where processes were that are no more
    members = {number: _start(folder, number) for number in (SERVER_NUMBER, *range(processes))}
    observer = setting.endpoint(folder, OBSERVER, Snapshots(folder / "lives" / "observer").begin_epoch())
    end = time.monotonic() + timeout_seconds
    try:
        asked = observer.call(ADDRESS, ActorMessage("outcome"), writes=False)
        while not asked.done():
            for number, process in members.items():
                if process.poll() not in (None, 0):
                    if restarts > 0:
                        restarts, members[number] = restarts - 1, _start(folder, number)
                    elif number == SERVER_NUMBER:
                        raise LaconicError(f"the server has ended with code {process.poll()}: see {folder}/logs")
            if all(process.poll() is not None for number, process in members.items() if number != SERVER_NUMBER):
                raise LaconicError(f"all processes with clients have ended: see {folder}/logs")
            if time.monotonic() > end:
                raise LaconicError(f"the run was not done after {timeout_seconds:g} s: see {folder}/logs")
            time.sleep(_LOOK_SECONDS)
        found = outcome_of(asked.wait())
        _wait(list(members.values()), _GRACE_SECONDS)
        return found
    finally:
        for process in members.values():
            process.kill()
            process.wait()
        observer.close()


def _start(folder: Path, number: int) -> subprocess.Popen[bytes]:
    name = "server" if number == SERVER_NUMBER else f"process{number}"
    with (make_folder(folder / "logs") / f"{name}.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", member.__name__, str(folder), str(number)], stdout=log, stderr=log
        )


def _wait(members: list[subprocess.Popen[bytes]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in members) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
