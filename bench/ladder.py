"""Tables of losses: every method on one rung of the ladder, as virtual workers that share a GPU.

    python bench/corpus.py runs/corpus.xz
    python bench/ladder.py breadth --processes 14 --compile           # goes on where it was
    python bench/ladder.py depth --processes 4 --compile --minutes 9

`rungs.toml` names the rungs and the methods. A run is the unit that resumes: each appends one line to
`src/laconic/planner/measured/runs/<task>-<rung>.jsonl` (or `--out`), and a run whose line is there is not made again.
Rates are chosen on a seed of their own at a share of the steps, and never on a seed that is reported. Several processes
share the device, each with all virtual workers of one run, whose gradients are computed at once (`laconic.batched`).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
import tomllib
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.rungs.choosing import Method, Rung, needed, read  # noqa: E402
from bench.rungs.guards import refuse_other_data  # noqa: E402
from bench.rungs.run import Run  # noqa: E402
from bench.rungs.tasks import data_of  # noqa: E402

from laconic.planner.runs import FOLDER  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rung", help="a table of rungs.toml")
    parser.add_argument(
        "--data", type=Path, help="the task's file: a frozen text, or images; default: where it is made"
    )
    parser.add_argument("--processes", type=int, default=1, help="runs side by side on the device")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument(
        "--only", action="append", default=[], help="methods whose `optimizer: sentence` contains this text"
    )
    parser.add_argument("--without", action="append", default=[], help="leave out methods that do, as `muon:`")
    parser.add_argument("--rungs", type=Path, default=ROOT / "bench" / "rungs.toml", help="rungs and methods")
    parser.add_argument("--out", type=Path, help="the rows; default: beside those that are shipped")
    parser.add_argument("--alone", action="store_true", help="each virtual worker computes for itself")
    parser.add_argument("--compile", action="store_true", help="compile the gradients' computation")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="runs at most")
    given = parser.parse_args()
    families = tomllib.loads((ROOT / "bench" / "compressors.toml").read_text())
    rung, methods = read(tomllib.loads(given.rungs.read_text()), given.rung, families)
    named = {method: f"{method.optimizer}: {method.sentence}" for method in methods}
    methods = [m for m in methods if not given.only or any(text in named[m] for text in given.only)]
    methods = [m for m in methods if not any(text in named[m] for text in given.without)]
    shipped = FOLDER / f"{rung.task}-{rung.name}.jsonl"
    out = given.out or shipped
    table = Table([*lines(shipped), *(lines(out) if out != shipped else ())], out)
    Packed(given, rung, methods, table).run()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class Table:
    """The rows that are known, and the file to which new ones are appended."""

    def __init__(self, rows: list[dict[str, Any]], out: Path) -> None:
        self.rows, self._out = rows, out
        out.parent.mkdir(parents=True, exist_ok=True)
        self._commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()

    def append(self, row: dict[str, Any]) -> None:
        row |= {"commit": self._commit, "command": " ".join(["python bench/ladder.py", *sys.argv[1:]])}
        self.rows.append(row)
        with self._out.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Packed:
    """Processes that train runs side by side, until all are made or the time is over."""

    def __init__(self, given: argparse.Namespace, rung: Rung, methods: list[Method], table: Table) -> None:
        self._given, self._rung, self._methods, self._table = given, rung, methods, table
        self._data = data_of(rung, given.data)
        self._begin = time.monotonic()
        self._busy: dict[Connection, tuple[BaseProcess, Run]] = {}
        self._idle: dict[Connection, BaseProcess] = {}
        self._rates: list[float] = []  # seconds of a step
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
        print(f"{self._made} runs in {(time.monotonic() - self._begin) / 60:.1f} minutes", flush=True)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._given, self._rung), daemon=True)
        process.start()
        theirs.close()
        self._idle[ours] = process

    def _hand_out(self) -> bool:
        """Hand runs to idle processes; return whether one was handed out."""
        running, begun = {run.identity for _, run in self._busy.values()}, False
        for run in needed(self._rung, self._methods, self._table.rows):
            if not self._idle or self._made + len(self._busy) >= self._given.most:
                break
            if run.identity not in running and self._ends_in_time(run):
                refuse_other_data(run, self._data, self._table.rows)
                end, process = self._idle.popitem()
                self._busy[end] = process, run
                end.send(run)
                begun = True
        return begun

    def _ends_in_time(self, run: Run) -> bool:
        expected = statistics.median(self._rates) * run.steps if self._rates else 0.0
        return time.monotonic() - self._begin + expected < 60 * self._given.minutes

    def _receive(self, end: Connection) -> None:
        process, run = self._busy.pop(end)
        try:
            row = end.recv()
        except EOFError:  # the process has ended: another takes its place
            row = "its process ended"
            self._start()
        else:
            self._idle[end] = process
        if isinstance(row, str):
            print(f"failed: {run.optimizer} {run.sentence}, rate {run.lr:g}, seed {run.seed}: {row[:300]}", flush=True)
            self._methods = [m for m in self._methods if (m.sentence, m.optimizer) != (run.method, run.optimizer)]
            return
        self._made += 1
        self._rates.append(row["seconds"] / run.steps)
        self._table.append(row)
        shown = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
        minutes = (time.monotonic() - self._begin) / 60
        print(
            f"{minutes:5.1f} min  {run.purpose:6} {shown:>8}  {run.lr:<7g} seed {run.seed}  {row['seconds']:6.1f} s"
            f"  {row.get('bytes', 0):.3g} B  {run.steps} steps  {run.optimizer}: {run.sentence}",
            flush=True,
        )


def _serve(end: Connection, given: argparse.Namespace, rung: Rung) -> None:
    """Train what is asked for, in a process of its own, and answer with rows; with a text where one fails."""
    import torch
    from bench.rungs.tasks import task_of
    from bench.rungs.training import train

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {
        "packed": given.processes,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__.partition("+")[0],
    }
    tasks: dict[int, Any] = {}  # by workers: reading images or making a world takes as long as many steps
    while True:
        run = end.recv()
        try:
            if run.workers not in tasks:
                tasks[run.workers] = task_of(rung, given.data, device, run.workers)
            end.send(train(run, tasks[run.workers], not given.alone, given.compile) | facts)
        except Exception as error:
            end.send(f"{type(error).__name__}: {error}")
        gc.collect()  # of what the run held, so that all processes together fit on the device
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
