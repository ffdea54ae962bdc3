"""Metrics that the user reports: `laconic.log(loss=…, accuracy=…, batch=…)`.

Targets, phases that end at a loss, and adaptive rules read them. Each worker keeps its own latest values; in a run with
a folder every call is appended to `metrics/rank-N.jsonl`. A `--target` that is reached is printed on the console and
recorded in that file too. Seconds are those of the worker's own clock: virtual ones on virtual workers.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat, TextIO
from weakref import WeakKeyDictionary, finalize

from torch import Tensor

from laconic.errors import ContractError
from laconic.runtime import step_recorder
from laconic.runtime.current_worker import current, is_process_worker, rank
from laconic.runtime.metric_sinks import write_to_sinks
from laconic.values.metric_direction import as_good, falls_towards
from laconic.values.run_config import RunConfig
from laconic.worker import Worker


def _clock_seconds() -> float:
    """Return the time by the running worker's clock; before a process is connected it is that of a real one."""
    worker = current()
    return time.perf_counter() if worker is None else worker.clock_seconds()


@dataclass
class MetricLog:
    """The metrics that one worker has logged so far."""

    worker: int
    config: RunConfig = field(default_factory=RunConfig.current)
    began: float = field(default_factory=_clock_seconds)
    latest: dict[str, float] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)
    serial: int = 0
    first: dict[str, float] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    file: TextIO | None = None

    def __post_init__(self) -> None:
        if self.config.folder is not None:
            path = Path(self.config.folder) / "metrics" / f"rank-{self.worker}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a", buffering=1)
            finalize(self, self.file.close).atexit = False  # scripts may log while they exit

    def add(self, values: dict[str, float]) -> None:
        """Record the values of one call of `laconic.log`, and whether they reach a target."""
        seconds = round(_clock_seconds() - self.began, 9)
        self.latest.update(values)
        self.serial += 1
        self.serials.update(dict.fromkeys(values, self.serial))
        for name, value in values.items():
            if math.isfinite(value):
                self.first.setdefault(name, value)
        self._append({"seconds": seconds, **values})
        for name, target in self.config.targets.items():
            if name in values and name not in self.reached and self._has_reached(name, target):
                self.reached.add(name)
                self._append({"seconds": seconds, "reached": {name: target}})
                if self.worker == 0:
                    worker = current()
                    clock = "" if worker is None or is_process_worker(worker) else " of virtual time"
                    print(f"laconic: target {name}={target:g} reached after {seconds:.4g} s{clock}", file=sys.stderr)

    def _has_reached(self, name: str, target: float) -> bool:
        began = [self.first[name]] if name in self.first else []
        return as_good(self.latest[name], target, falls_towards(name, began, target))

    def _append(self, line: dict[str, object]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line) + "\n")


_logs: WeakKeyDictionary[Worker, MetricLog] = WeakKeyDictionary()
_unconnected: dict[int, MetricLog] = {}
_observers: WeakKeyDictionary[Worker, Callable[[Any, dict[str, float]], None]] = WeakKeyDictionary()


def _own_log() -> MetricLog:
    """Return this worker's log. A worker that follows another of its rank, as in a second simulation, begins with an
    empty one; what a process logged before it connected belongs to the worker that it then becomes."""
    worker = current()
    if worker is None:
        if rank() not in _unconnected:
            _unconnected[rank()] = MetricLog(rank())
        return _unconnected[rank()]
    if worker not in _logs:
        earlier = _unconnected.pop(worker.rank, None) if is_process_worker(worker) else None
        _logs[worker] = earlier or MetricLog(worker.rank)
    return _logs[worker]


def log(**values: SupportsFloat) -> None:
    """Report metrics of this worker's current step.

    - `values`: numbers by name, as in `laconic.log(loss=loss, accuracy=0.9)`; a tensor of one element is a number, too,
      and needs no `detach()` or `item()`.
    """
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ContractError(
                f"log({name}=…) takes one number, not a tensor of shape {list(value.shape)}: log its mean, "
                f"laconic.log({name}={name}.mean())"
            )
        try:
            numbers[name] = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, RuntimeError):
            raise ContractError(f"log({name}=…) takes a number, not {type(value).__name__}") from None
    _own_log().add(numbers)
    worker = current()
    if worker is not None and worker in _observers:
        _observers[worker](worker, numbers)
    write_to_sinks(worker, numbers)
    step_recorder.record_metrics(worker, numbers)


def observe(worker: Worker, act: Callable[[Any, dict[str, float]], None]) -> None:
    """Call `act` with this worker and the values of each of its later calls of `laconic.log`."""
    _observers[worker] = act


def serial() -> int:
    """Return how often this worker has logged so far."""
    return _own_log().serial


def latest(name: str, since: int = 0) -> float | None:
    """Return the last value this worker logged under a name, or None if that was not after the given serial number."""
    own_log = _own_log()
    return own_log.latest.get(name) if own_log.serials.get(name, 0) > since else None
