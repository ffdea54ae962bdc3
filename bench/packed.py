"""Runs of a table, packed side by side on one device: each appends a row as it ends, and an interrupted table goes on.
Several processes share a GPU under MPS, where there is one.

What is trained is the table's own: a subclass of `Packed` says which runs are missing, what one costs, and which
function trains them in a process.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bench.mps import daemon

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.1
"""By how much a run may take longer than those before it."""


class Run(Protocol):
    """A training that a process can be asked for."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from all others."""
        ...


R = TypeVar("R", bound=Run)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none where there is no file. A last line that was cut off, by a kill, goes from it."""
    if not path.is_file():
        return []
    with path.open("rb+") as file:
        whole = file.read()
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) < len(whole):
            file.truncate(len(kept))
    return [json.loads(line) for line in kept.splitlines()]


class Table:
    """The rows that are known, and the file to which new ones are appended.

    - `rows`: that are known, in whatever file they are.
    - `out`: where new ones go.
    """

    def __init__(self, rows: list[dict[str, Any]], out: Path) -> None:
        self.rows, self._out = rows, out
        out.parent.mkdir(parents=True, exist_ok=True)
        self._commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()

    def append(self, row: dict[str, Any]) -> None:
        """Keep a row, with the commit and the command that made it."""
        command = " ".join([f"python bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        row |= {"commit": self._commit, "command": command}
        self.rows.append(row)
        with self._out.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Packed(Generic[R]):
    """Processes that train runs side by side, until all are made or the time is over.

    - `given`: has `processes`, `minutes` after which no run shall end, and `most` runs.
    - `table`: to which rows are appended.
    """

    def __init__(self, given: argparse.Namespace, table: Table, arguments: tuple[Any, ...]) -> None:
        self._given, self._table, self._arguments = given, table, arguments
        self._begin = time.monotonic()
        self._busy: dict[Connection, tuple[BaseProcess, R]] = {}
        self._idle: dict[Connection, BaseProcess] = {}
        self._rates: list[float] = []  # seconds for a unit of cost
        self._made = 0

    @staticmethod
    def trainer(*arguments: Any) -> Callable[[R], dict[str, Any]]:
        """Return what trains a run and returns its row; called in each process, with the arguments of all."""
        raise NotImplementedError

    @classmethod
    def serve(cls, end: Connection, given: argparse.Namespace, *rest: Any) -> None:
        """Train what is asked for, in a process of its own, and answer with rows; with a text where a run fails."""
        import torch

        torch.set_num_threads(1)
        cuda = torch.cuda.is_available()
        facts = {
            "packed": given.processes,
            "device": torch.cuda.get_device_name() if cuda else "CPU",
            "torch": torch.__version__.partition("+")[0],
        }
        train = cls.trainer(given, *rest)
        while True:
            run = end.recv()
            try:
                end.send(train(run) | facts)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                end.send(f"{type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})")
            gc.collect()  # of what the run held, so that all processes together fit on the device
            if cuda:
                torch.cuda.empty_cache()

    def missing(self) -> Iterator[R]:
        """Yield the runs that are not made yet, those that matter most first."""
        raise NotImplementedError

    def cost(self, run: R) -> float:
        """Return what a run costs, in units such as steps."""
        raise NotImplementedError

    def described(self, run: R, row: dict[str, Any]) -> str:
        """Return a line about a run that has ended."""
        raise NotImplementedError

    def failed(self, run: R, why: str) -> None:
        """Say why a run has no row, and see to it that it is not missing any more."""
        raise NotImplementedError

    def run(self) -> None:
        """Train until no run is missing, or none would end in time."""
        if self._given.processes == 1 or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
            self._train()
            return
        with daemon() as (environment, _):
            os.environ.update(environment or {})  # which processes that are started here inherit
            self._train()

    def _train(self) -> None:
        for _ in range(self._given.processes):
            self._start()
        try:
            while self._hand_out() or self._busy:
                for end in wait(list(self._busy), timeout=10):
                    assert isinstance(end, Connection)
                    self._receive(end)
        finally:
            for process in [*self._idle.values(), *(process for process, _ in self._busy.values())]:
                process.kill()
        print(f"{self._made} runs in {self._minutes:.1f} minutes", flush=True)

    @property
    def _minutes(self) -> float:
        return (time.monotonic() - self._begin) / 60

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=type(self).serve, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()
        self._idle[ours] = process

    def _hand_out(self) -> bool:
        """Hand runs to idle processes; return whether one was handed out."""
        running, begun = {run.identity for _, run in self._busy.values()}, False
        for run in self.missing():
            if not self._idle or self._made + len(self._busy) >= self._given.most:
                break
            if run.identity not in running and self._ends_in_time(run):
                end, process = self._idle.popitem()
                self._busy[end] = process, run
                with suppress(OSError):  # of a process that has ended, which is seen when its answer is received
                    end.send(run)
                begun = True
        return begun

    def _ends_in_time(self, run: R) -> bool:
        expected = SLOWER * statistics.median(self._rates[-50:]) * self.cost(run) if self._rates else 0.0
        return self._minutes + expected / 60 < self._given.minutes

    def _receive(self, end: Connection) -> None:
        process, run = self._busy.pop(end)
        try:
            row = end.recv()
        except (EOFError, OSError):  # the process has ended: another takes its place
            row = "its process ended"
            self._start()
        else:
            self._idle[end] = process
        if isinstance(row, str):
            self.failed(run, row)
            return
        self._made += 1
        self._rates.append(row["seconds"] / self.cost(run))
        self._table.append(row)
        print(f"{self._minutes:5.1f} min  {self.described(run, row)}", flush=True)
