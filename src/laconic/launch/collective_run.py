"""A program carried out between processes of this machine: is the sum right, how long did it take, what was sent?

python -m laconic.launch.collective_run TASK      # one of the processes, with a launcher's environment
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from laconic.collective.cheapest import network_of
from laconic.collective.generators import make_program
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.launch.net import Namespace, shaped
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.worker import Communication, Group

_SHAPED_PORT = 29500  # a shaped network has ports of its own
_PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class Task:
    """What the processes do.

    - `program`: its name.
    - `workers`: the number of processes, of which `inside` neighbours are taken to share a host.
    - `nbytes`: of each process's vector.
    - `repeats`: how often it is summed; before, it is summed once more.
    """

    program: str
    workers: int
    inside: int
    nbytes: int
    repeats: int


@dataclass(frozen=True)
class Outcome:
    """What came out of it.

    - `exact`: whether every process had the sum every time.
    - `seconds`: of each repeat, on the slowest process.
    - `sent_bytes`: by each process, in one sum.
    - `probed_seconds`: the price on the network that the processes found between them.
    """

    exact: bool
    seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    probed_seconds: float

    @property
    def median_seconds(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.seconds)


def run_program(task: Task, bits_per_second: float | None = None) -> Outcome:
    """Start the processes, with links of this rate or on the loopback, and return what they found."""
    program = make_program(task.program, task.workers, task.inside)  # what is none is refused before any process starts
    if program.relation.name != "all_reduce":
        raise LaconicError(
            f"{task.program} is of the kind {program.relation.name}; only an all-reduce can be run so far"
        )
    with ExitStack() as cleanup:
        logs = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        places: Sequence[Namespace | None] = [None] * task.workers
        store = ("127.0.0.1", _free_port())
        if bits_per_second is not None:
            net = cleanup.enter_context(shaped(task.workers, bits_per_second))
            places, store = net.places, (net.places[0].address, _SHAPED_PORT)
        started = []
        for rank, place in enumerate(places):
            started.append(_start(task, rank, place, store, logs))
            cleanup.callback(_end, started[-1])
        return _outcome(started, logs)


def _start(
    task: Task, rank: int, place: Namespace | None, store: tuple[str, int], logs: Path
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(task))]
    environment = {
        "MASTER_ADDR": store[0],
        "MASTER_PORT": str(store[1]),
        "GLOO_SOCKET_IFNAME": "lo" if place is None else place.interface,
        "RANK": str(rank),
        "WORLD_SIZE": str(task.workers),
        "OMP_NUM_THREADS": "1",
    }
    with (logs / f"{rank}.log").open("wb") as log, (logs / f"{rank}.out").open("wb") as out:
        return subprocess.Popen(
            command if place is None else place.command(command),
            env=os.environ | environment,
            stdout=out,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the workers
        )


def _outcome(started: Sequence[subprocess.Popen[bytes]], logs: Path) -> Outcome:
    for rank, process in enumerate(started):
        try:
            failed = process.wait(_PATIENCE_SECONDS) != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            last = (logs / f"{rank}.log").read_text(errors="replace").splitlines()[-5:]
            raise LaconicError(f"process {rank} of the sum ended without a result; its last lines:\n" + "\n".join(last))
    found: dict[str, Any] = json.loads((logs / "0.out").read_text().splitlines()[-1])
    return Outcome(found["exact"], tuple(found["seconds"]), tuple(found["sent_bytes"]), found["probed_seconds"])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------------------------ in a process


def carry_out(task: Task, group: Group, sent_bytes: Any) -> Outcome:
    """Sum vectors of whole numbers again and again, and return what all members found, at each of them.

    - `sent_bytes`: returns what this member has sent so far.
    """
    program = make_program(task.program, group.size, task.inside)
    measured = _done(group.measure(torch.device("cpu")))
    _, _, graph = network_of(measured)
    priced = price(program, task.nbytes, graph, measured.message_seconds).seconds
    numel = max(task.nbytes // 8, 1)
    exact, seconds, sent = True, list[float](), 0.0
    for repeat in range(task.repeats + 1):
        x = torch.arange(numel) * (group.rank + 1)
        _done(_waited(group.barrier()))
        begin, before = group.clock_seconds(), sent_bytes()
        _done(group.run(program, x))
        taken, sent = group.clock_seconds() - begin, sent_bytes() - before
        exact &= bool(torch.equal(x, torch.arange(numel) * (group.size * (group.size + 1) // 2)))
        seconds += [taken] if repeat else []
    rows = _done(_waited(group.all_gather(torch.tensor([float(exact), sent, *seconds], dtype=torch.float64))))
    slowest = rows[:, 2:].amax(0).tolist()
    return Outcome(bool(rows[:, 0].all()), tuple(slowest), tuple(rows[:, 1].tolist()), priced)


def _waited(handle: Any) -> Communication[Any]:
    return (yield handle)


def _done(communication: Communication[Any]) -> Any:
    exchange: Any = InFlight(communication)
    complete([exchange])
    return exchange.result


def main() -> None:
    """Take part in the task that the command line gives; the first process prints the outcome."""
    worker = connect()
    outcome = carry_out(Task(**json.loads(sys.argv[1])), worker.world, worker.ledger.sent_bytes)
    if worker.rank == 0:
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
