"""What a comparison learns from a worker: when each step ended, what had been said by then, what the script logged.

The same object serves both engines. On real processes it also stops at a *gate* before the first step and after every
so many: a comparison lets several runs live side by side and opens one gate at a time, so that they meet the machine
in the same mood without disturbing each other. Time is the worker's own clock, less what it spent at the gate.
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
from laconic.values.run_config import STEPS, RunConfig
from laconic.worker import Worker

_probes: dict[Worker, StepRecorder] = {}  # each lives until the process ends, when it hands over its last records


class RecordSink(Protocol):
    """Where records go."""

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        """Take what was recorded so far; how many steps to do until the next time, 0 when there have been enough."""
        ...


class ComparisonGate:
    """A comparison's gate: report, then wait until it is opened."""

    def __init__(self, path: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise LaconicError(f"the comparison behind the gate {path} is gone ({error.strerror})") from error
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._say({"rank": rank})

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        self._say({"records": records, "ended": ended})
        records.clear()
        if ended:
            return 0
        answer = self._lines.readline()
        if not answer:
            raise LaconicError("the comparison that this run belongs to has ended: nobody opens its gate any more")
        return int(answer)

    def _say(self, value: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(value).encode() + b"\n")


class StepFile:
    """Records of one worker in a file of the run folder, written when the worker ends."""

    def __init__(self, folder: str, rank: int, stop_after: int | None) -> None:
        self._path = Path(folder) / STEPS / f"rank-{rank}.jsonl"
        self._stop_after = stop_after

    def report(self, records: list[dict[str, Any]], ended: bool) -> int:
        if ended and not self._path.exists():  # a later life of this rank ends first at exit, and it counts
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("".join(json.dumps(record) + "\n" for record in records))
        if self._stop_after is None:
            return sys.maxsize
        return 0 if records else self._stop_after


class StepRecorder:
    """One worker's records: after each step and at each `laconic.log`, the time and the bytes so far."""

    def __init__(self, worker: Worker, outlet: RecordSink) -> None:
        self._worker, self._outlet = worker, outlet
        self._records: list[dict[str, Any]] = []
        self._steps = 0
        self._stop_at = 0
        self._before_seconds = self._last_seconds = 0.0
        self._opened_seconds = worker.clock_seconds()
        self._sent_before, self._received_before = worker.ledger.sent_bytes(), worker.ledger.received_bytes()
        self._waited_before = worker.waited_seconds

    def attach(self, optimizer: optim.Optimizer) -> None:
        """Follow this optimizer's steps; wait for the gate before the first."""
        self._pass_gate()
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        optimizer.register_step_post_hook(lambda *_: self._on_step())

    def log(self, values: dict[str, float]) -> None:
        self._records.append({**self._now(), "values": values})

    def end(self) -> None:
        self._outlet.report(self._records, ended=True)

    def _before_step(self) -> None:
        """End the script after enough steps: not earlier, so that it can validate and log after the last of them."""
        if self._steps == self._stop_at:
            raise SystemExit(0)

    def _on_step(self) -> None:
        self._steps += 1
        self._records.append(self._now())
        self._last_seconds = self._records[-1]["seconds"]
        if self._steps == self._stop_at:
            self._pass_gate()

    def _pass_gate(self) -> None:
        steps = self._outlet.report(self._records, ended=False)
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
    """The same optimizer; its steps are recorded where a comparison asks for it. The first of a worker counts."""
    outlet: RecordSink | None = None
    if worker in _probes:
        return optimizer
    if config.gate is not None:
        outlet = ComparisonGate(config.gate, worker.rank)
    elif config.record_steps and config.folder is not None:
        outlet = StepFile(config.folder, worker.rank, config.stop_after)
    if outlet is not None:
        probe = _probes[worker] = StepRecorder(worker, outlet)
        atexit.register(probe.end)
        probe.attach(optimizer)
    return optimizer


def note(worker: Worker | None, values: dict[str, float]) -> None:
    """A worker has logged these metrics; None: a process that is not connected yet, and so not observed."""
    if worker is not None and worker in _probes:
        _probes[worker].log(values)
