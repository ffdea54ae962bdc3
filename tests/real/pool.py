"""A pool of real worker processes that many tests share, forked from one process that has imported torch and all
techniques: importing them four times on two cores costs half a minute.

`pool.run(function, *args, workers=2)` calls `function(member, *args)` in each of the first `workers` processes and
returns their results in rank order; an exception in any of them is raised here, with its traceback. After a failure the
pool is started afresh, so that one broken test does not break the next.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

SIZE = 4
PATIENCE_SECONDS = 150  # several workers on cores that have other work
START_SECONDS = 240  # several times torch and all techniques, on cores that have other work


@dataclass(frozen=True)
class PoolRank:
    """The process on which a test's function runs: its rank, and the group it belongs to."""

    rank: int
    size: int
    process_group: Any


class WorkerFailed(AssertionError):
    """Some worker raised; the message holds every traceback."""


class Pool:
    def __init__(self) -> None:
        self._processes: list[mp.process.BaseProcess] = []
        self._pipes: list[Any] = []
        self._stacks: list[Path] = []

    def run(self, function: Callable[..., Any], *args: Any, workers: int = 2) -> list[Any]:
        if not self._processes:
            self._start()
        results, errors = [], []
        try:
            for pipe in self._pipes[:workers]:
                pipe.send((function, args, workers))
            for rank, pipe in enumerate(self._pipes[:workers]):
                if not pipe.poll(PATIENCE_SECONDS):
                    errors.append(f"rank {rank} did not answer in {PATIENCE_SECONDS} s\n{self._where_they_are()}")
                    break
                good, value = pipe.recv()
                results.append(value)
                if not good:
                    errors.append(f"rank {rank}:\n{value}")
        except (BrokenPipeError, EOFError, ConnectionResetError):
            errors.append(f"a worker has died; exit codes: {[process.exitcode for process in self._processes]}")
        if errors:
            self.stop()
            raise WorkerFailed("\n".join(errors))
        return results

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["tests.real.imported"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(SIZE):
            here, there = context.Pipe()
            handle, name = tempfile.mkstemp(prefix="laconic-stacks-")
            os.close(handle)
            self._stacks.append(Path(name))
            process = context.Process(target=_work, args=(rank, port, there, name), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(START_SECONDS):
                where = self._where_they_are()
                self.stop()
                raise WorkerFailed(f"rank {rank} did not start in {START_SECONDS} s\n{where}")
            pipe.recv()

    def _where_they_are(self) -> str:
        """The stacks of all workers, which write them on a signal."""
        for process in self._processes:
            os.kill(process.pid or 0, signal.SIGUSR1)
        self._pipes[0].poll(1.0)  # time to write
        return "\n".join(f"rank {rank}:\n{path.read_text()}" for rank, path in enumerate(self._stacks))

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for path in self._stacks:
            path.unlink(missing_ok=True)
        self._processes, self._pipes, self._stacks = [], [], []


def _work(rank: int, port: int, pipe: Any, stacks: str) -> None:
    faulthandler.register(signal.SIGUSR1, Path(stacks).open("w"))  # noqa: SIM115  # as long as the process lives
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(SIZE),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(SIZE),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    import torch
    import torch.distributed as dist

    from laconic import registry
    from laconic.real.connect import connect

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    connect()  # everyone beats, also those whom no test needs yet
    registry.load()
    groups = {SIZE: dist.group.WORLD, **{n: dist.new_group(list(range(n))) for n in range(1, SIZE)}}
    pipe.send("ready")
    while True:
        try:
            function, args, workers = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            pipe.send((True, function(PoolRank(rank, workers, groups[workers]), *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
