"""Processes that train runs side by side on one device, until all are made or the time is over."""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench.clients.choosing import Run, Size, needed

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 1.25
"""By how much a run may take longer than those before it."""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class Table:
    """The rows that are known, and the file to which new ones are appended."""

    def __init__(self, out: Path) -> None:
        self.rows, self._out = lines(out), out
        out.parent.mkdir(parents=True, exist_ok=True)
        self._commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()

    def append(self, row: dict[str, Any]) -> None:
        row |= {"commit": self._commit, "command": " ".join(["python bench/federated_cifar.py", *sys.argv[1:]])}
        self.rows.append(row)
        with self._out.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Packed:
    """Processes, each with one run at a time."""

    def __init__(self, given: argparse.Namespace, size: Size, table: Table) -> None:
        self._given, self._size, self._table = given, size, table
        self._begin = time.monotonic()
        self._busy: dict[Connection, tuple[BaseProcess, Run]] = {}
        self._idle: dict[Connection, BaseProcess] = {}
        self._rates: list[float] = []  # seconds of a client's training
        self._failed: list[dict[str, Any]] = []
        self._made = 0

    def run(self) -> None:
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
        print(f"{self._made} runs in {self._minutes:.1f} minutes, {len(self._failed)} failed", flush=True)
        if self._rates:
            each = statistics.median(self._rates) * 1000
            print(f"{each:.1f} ms for a client's training in a round, beside {self._given.processes - 1} others")

    @property
    def _minutes(self) -> float:
        return (time.monotonic() - self._begin) / 60

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self._given, self._size), daemon=True)
        process.start()
        theirs.close()
        self._idle[ours] = process

    def _hand_out(self) -> bool:
        """Hand runs to idle processes; return whether one was handed out."""
        running, begun = {run.identity for _, run in self._busy.values()}, False
        for run in needed(self._size, [*self._table.rows, *self._failed]):
            if not self._idle or self._made + len(self._busy) >= self._given.most:
                break
            if run.identity not in running and self._is_wanted(run) and self._ends_in_time(run):
                end, process = self._idle.popitem()
                self._busy[end] = process, run
                end.send(run)
                begun = True
        return begun

    def _is_wanted(self, run: Run) -> bool:
        return not self._given.only or any(text in f"{run.population}: {run.sentence}" for text in self._given.only)

    def _ends_in_time(self, run: Run) -> bool:
        expected = SLOWER * statistics.median(self._rates[-50:]) * run.work if self._rates else 0.0
        return self._minutes + expected / 60 < self._given.minutes

    def _receive(self, end: Connection) -> None:
        process, run = self._busy.pop(end)
        try:
            row = end.recv()
        except EOFError:  # the process has ended: another takes its place
            row = "its process ended"
            self._start()
        else:
            self._idle[end] = process
        if isinstance(row, str):  # the worst of all for now, and tried again when the table is continued
            print(f"failed: {run.population}: {run.sentence}, rate {run.rate:g}: {row}", flush=True)
            self._failed.append({**vars(run), "accuracy": -math.inf})
            return
        self._made += 1
        self._rates.append(row["wall_seconds"] / run.work)
        self._table.append(row)
        print(
            f"{self._minutes:5.1f} min  {run.purpose:6}  {100 * row['accuracy']:5.1f} %  rate {run.rate:<5g} "
            f"seed {run.seed:<3}  {row['wall_seconds']:6.1f} s  {run.rounds} rounds  {run.population}: {run.sentence}",
            flush=True,
        )


def serve(end: Connection, given: argparse.Namespace, size: Size) -> None:
    """Train what is asked for, in a process of its own, and answer with rows; with a text where one fails."""
    import torch
    from bench.clients.images import Images
    from bench.clients.training import train

    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {
        "packed": given.processes,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__.partition("+")[0],
    }
    task: Images | None = None
    while True:
        run = end.recv()
        try:
            task = task or Images.load(device, size.images)
            end.send(train(run, task, not given.eager) | facts)
        except Exception as error:
            import traceback

            where = traceback.extract_tb(error.__traceback__)[-1]
            end.send(f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})")
        gc.collect()  # of what the run held, so that all processes together fit on the device
        if device.type == "cuda":
            torch.cuda.empty_cache()
