"""What a comparison records of a worker: when each step ended, the bytes sent by then, and what the script logged.

The same object serves both engines. On real processes it also stops at a *gate* before the first step and after every
so many: a comparison keeps several runs alive side by side and opens one gate at a time, so that they all meet the same
noise of the host without disturbing each other. Time is the worker's own clock, less what it spent at the gate.
"""

from __future__ import annotations

import atexit
import json
import socket
import sys
from pathlib import Path
from typing import Any, Protocol

from torch import optim

from laconic.errors import LaconicError
from laconic.files import make_folder, write_text
from laconic.runtime.traffic import count_steps
from laconic.values.run_config import STEPS, RunConfig
from laconic.worker import Worker

_recorders: dict[Worker, StepRecorder] = {}  # each lives until the process ends, when it hands over its last records


class RecordSink(Protocol):
    """A destination of records."""

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        """Take what was recorded so far; return how many steps to make until the next report, 0 when there have been
        enough."""
        ...


class ComparisonGate:
    """A connection to a comparison that reports records and then waits until the gate is opened."""

    def __init__(self, path: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise LaconicError(f"the comparison behind the gate {path} is gone ({error.strerror})") from error
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._send({"rank": rank})

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        self._send({"records": records, "ended": ended})
        records.clear()
        if ended:
            return 0
        answer = self._lines.readline()
        if not answer:
            raise LaconicError("the comparison that this run belongs to has ended: nobody opens its gate any more")
        return int(answer)

    def _send(self, value: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(value).encode() + b"\n")


class StepFile:
    """A file in the run folder with the records of one worker, written when the worker ends."""

    def __init__(self, folder: str, rank: int, stop_after: int | None) -> None:
        self._path = Path(folder) / STEPS / f"rank-{rank}.jsonl"
        self._stop_after = stop_after

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        if ended and not self._path.exists():  # exit handlers run last first: the latest worker of this rank counts
            make_folder(self._path.parent)
            write_text(self._path, "".join(json.dumps(record) + "\n" for record in records))
        if self._stop_after is None:
            return sys.maxsize
        return 0 if records else self._stop_after


class StepRecorder:
    """The records of one worker: after each step and at each `laconic.log`, the time and the bytes so far."""

    def __init__(self, worker: Worker, sink: RecordSink) -> None:
        self._worker, self._sink = worker, sink
        self._records: list[dict[str, Any]] = []
        self._steps = 0
        self._stop_at = 0
        self._before_seconds = self._last_seconds = 0.0
        self._opened_seconds = worker.clock_seconds()
        self._sent_before, self._received_before = worker.ledger.sent_bytes(), worker.ledger.received_bytes()
        self._waited_before = worker.waited_seconds

    def attach(self, optimizer: optim.Optimizer) -> None:
        """Record this optimizer's steps; wait for the gate before the first."""
        self._pass_gate()
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        optimizer.register_step_post_hook(lambda *_: self._on_step())

    def log(self, values: dict[str, float]) -> None:
        """Record metrics that the script has logged."""
        self._records.append({**self._now(), "values": values})

    def end(self) -> None:
        """Hand over the last records."""
        self._sink.report(self._records, ended=True)

    def _before_step(self) -> None:
        """End the script before the step after the last one asked for, so that it can validate and log after that."""
        if self._steps == self._stop_at:
            raise SystemExit(0)

    def _on_step(self) -> None:
        self._steps += 1
        self._records.append(self._now())
        self._last_seconds = self._records[-1]["seconds"]
        if self._steps == self._stop_at:
            self._pass_gate()

    def _pass_gate(self) -> None:
        steps = self._sink.report(self._records, ended=False)
        self._stop_at = self._steps + steps
        self._before_seconds, self._opened_seconds = self._last_seconds, self._worker.clock_seconds()

    def _seconds(self) -> float:
        return self._before_seconds + self._worker.clock_seconds() - self._opened_seconds

    def _now(self) -> dict[str, Any]:
        ledger = self._worker.ledger
        return {
            "step": self._steps,
            "seconds": self._seconds(),
            "sent_bytes": ledger.sent_bytes() - self._sent_before,
            "received_bytes": ledger.received_bytes() - self._received_before,
            "waited_seconds": self._worker.waited_seconds - self._waited_before,
        }


def recorded(optimizer: optim.Optimizer, worker: Worker, config: RunConfig) -> optim.Optimizer:
    """Return the same optimizer; its steps are counted, and recorded where a comparison asks for it. Only a worker's
    first optimizer counts."""
    count_steps(optimizer, worker, config)
    sink: RecordSink | None = None
    if worker in _recorders:
        return optimizer
    if config.gate is not None:
        sink = ComparisonGate(config.gate, worker.rank)
    elif config.record_steps and config.folder is not None:
        sink = StepFile(config.folder, worker.rank, config.stop_after)
    if sink is not None:
        recorder = _recorders[worker] = StepRecorder(worker, sink)
        atexit.register(recorder.end)
        recorder.attach(optimizer)
    return optimizer


def record_metrics(worker: Worker | None, values: dict[str, float]) -> None:
    """Record metrics that a worker has logged; None stands for a process that is not connected yet and not recorded."""
    if worker is not None and worker in _recorders:
        _recorders[worker].log(values)
