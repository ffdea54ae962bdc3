"""`laconic.traffic`: what the running worker has sent, received and waited for so far, and how long its steps took.

A worker's steps are those of its first distributed optimizer. In a run with a folder every process leaves its last
figures in `traffic/rank-N.json`, from which the launcher makes the summary at the end of the run.
"""

from __future__ import annotations

import atexit
import json
import math
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

from torch import optim

from laconic.errors import ContractError
from laconic.runtime.current_worker import current, is_process_worker
from laconic.runtime.handed_over import rival_of
from laconic.values.run_config import TRAFFIC, RunConfig
from laconic.worker import Kind, Worker


@dataclass(frozen=True)
class Traffic:
    """One worker's communication so far, by its own clock: virtual seconds on virtual workers.

    Bytes are counted where they are handed to the transport. Bytes and waiting include the first broadcast of the
    model; bytes are NaN under another library's method, whose messages nobody counts.
    """

    steps: int
    seconds: float  # from distribute() to the end of the last step
    step_seconds: float  # the median; NaN before the first step
    payload_bytes: float  # sent: what compressors and sync rules exchange
    control_bytes: float  # sent: what the library itself needs to make workers agree
    received_bytes: float
    waited_seconds: float  # blocked in communication

    @property
    def sent_bytes(self) -> float:
        return self.payload_bytes + self.control_bytes

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Traffic:
        """Return the value from the fields that `dataclasses.asdict` gave."""
        return cls(**fields)


class _Steps:
    """The times at which the steps of one worker ended."""

    def __init__(self, began_seconds: float, counted: bool) -> None:
        self.began_seconds, self.counted = began_seconds, counted
        self.ends = array("d")


_steps: WeakKeyDictionary[Worker, _Steps] = WeakKeyDictionary()


def traffic() -> Traffic:
    """Return what this worker has communicated since it began; `laconic.distribute` comes first."""
    worker = current()
    if worker is None or worker not in _steps:
        raise ContractError("traffic() has nothing to count before laconic.distribute(): call that first")
    return traffic_of(worker)


def traffic_of(worker: Worker) -> Traffic:
    """Return a worker's communication so far; one that never distributed anything has made no steps."""
    steps = _steps.get(worker) or _Steps(0.0, counted=True)
    ends = [steps.began_seconds, *steps.ends]
    factor = 1.0 if steps.counted else math.nan
    return Traffic(
        steps=len(steps.ends),
        seconds=ends[-1] - ends[0],
        step_seconds=median(b - a for a, b in pairwise(ends)) if steps.ends else math.nan,
        payload_bytes=factor * worker.ledger.sent_bytes(Kind.PAYLOAD),
        control_bytes=factor * worker.ledger.sent_bytes(Kind.CONTROL),
        received_bytes=factor * worker.ledger.received_bytes(),
        waited_seconds=worker.waited_seconds,
    )


def count_steps(optimizer: optim.Optimizer, worker: Worker, config: RunConfig) -> None:
    """Count this optimizer's steps as the worker's, unless an earlier optimizer's count already."""
    if worker in _steps:
        return
    steps = _steps[worker] = _Steps(worker.clock_seconds(), counted=rival_of(optimizer) is None)
    optimizer.register_step_post_hook(lambda *_: steps.ends.append(worker.clock_seconds()))
    if config.folder is not None and is_process_worker(worker):
        atexit.register(_leave_figures, worker, Path(config.folder) / TRAFFIC / f"rank-{worker.rank}.json")


def _leave_figures(worker: Worker, path: Path) -> None:
    with suppress(OSError):  # a full disk must not make a run fail that has ended well
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(traffic_of(worker))) + "\n")
