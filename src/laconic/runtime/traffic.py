"""`laconic.traffic`: what the running worker has sent, received and waited for so far, and how long its steps took.

A worker's steps are those of its first distributed optimizer. In a run with a folder every process leaves its last
figures in `traffic/rank-N.json`, from which the launcher makes the summary at the end of the run.
"""

from __future__ import annotations

import atexit
import json
import math
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from weakref import WeakKeyDictionary

from torch import optim

from laconic.errors import ContractError
from laconic.runtime.bucket_uses import fallbacks_of
from laconic.runtime.current_worker import current, is_process_worker
from laconic.runtime.handed_over import rival_of
from laconic.values.run_config import TRAFFIC, RunConfig
from laconic.worker import Kind, Worker

_LATEST = 1000
"""The number of steps of which the median is taken: a script may ask in every step."""


@dataclass(frozen=True)
class Traffic:
    """One worker's communication so far, by its own clock: virtual seconds on virtual workers.

    Bytes are counted where they are handed to the transport. Bytes and waiting include the first broadcast of the
    model; bytes are NaN under another library's method, whose messages nobody counts.

    - `steps`: the number of steps made.
    - `seconds`: from `distribute` to the end of the last step.
    - `step_seconds`: the median over the last thousand steps; NaN before the first.
    - `payload_bytes`: sent by compressors and sync rules.
    - `control_bytes`: sent by the library itself, to make workers agree.
    - `received_bytes`: received, of both kinds.
    - `waited_seconds`: blocked in communication.
    - `fallbacks`: by name, how many calls of compression's hot loops plain torch has computed, since no faster body
      took the tensors; exchanges that a GPU replays are not counted again.
    """

    steps: int
    seconds: float
    step_seconds: float
    payload_bytes: float
    control_bytes: float
    received_bytes: float
    waited_seconds: float
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def sent_bytes(self) -> float:
        return self.payload_bytes + self.control_bytes


class _Steps:
    """How many steps one worker has made, and how long they took; `counted` says whether the ledger sees its bytes."""

    def __init__(self, began_seconds: float, counted: bool) -> None:
        self.began_seconds = self.ended_seconds = began_seconds
        self.counted = counted
        self.count = 0
        self.latest: deque[float] = deque(maxlen=_LATEST)

    def end(self, now_seconds: float) -> None:
        self.latest.append(now_seconds - self.ended_seconds)
        self.count += 1
        self.ended_seconds = now_seconds


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
    factor = 1.0 if steps.counted else math.nan
    return Traffic(
        steps=steps.count,
        seconds=steps.ended_seconds - steps.began_seconds,
        step_seconds=median(steps.latest) if steps.latest else math.nan,
        payload_bytes=factor * worker.ledger.sent_bytes(Kind.PAYLOAD),
        control_bytes=factor * worker.ledger.sent_bytes(Kind.CONTROL),
        received_bytes=factor * worker.ledger.received_bytes(),
        waited_seconds=worker.waited_seconds,
        fallbacks=fallbacks_of(worker),
    )


def count_steps(optimizer: optim.Optimizer, worker: Worker, config: RunConfig) -> None:
    """Count this optimizer's steps as the worker's, unless an earlier optimizer's count already."""
    if worker in _steps:
        return
    steps = _steps[worker] = _Steps(worker.clock_seconds(), counted=rival_of(optimizer) is None)
    optimizer.register_step_post_hook(lambda *_: steps.end(worker.clock_seconds()))
    if config.folder is not None and is_process_worker(worker):
        atexit.register(_leave_figures, worker, Path(config.folder) / TRAFFIC / f"rank-{worker.rank}.json")


def _leave_figures(worker: Worker, path: Path) -> None:
    with suppress(OSError):  # a full disk must not make a run fail that has ended well
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(traffic_of(worker))) + "\n")
