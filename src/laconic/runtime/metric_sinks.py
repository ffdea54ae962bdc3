"""`laconic.report_to`: other places where logged metrics go, with the bytes and times of the worker that logged them.

A sink is any object with `write(step, values)`; those for TensorBoard and Weights & Biases are in
`laconic.integrations`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

from laconic.errors import ContractError
from laconic.runtime.current_worker import current
from laconic.runtime.traffic import traffic_of
from laconic.worker import Worker

_FIGURES = ("seconds", "step_seconds", "waited_seconds", "sent_bytes", "received_bytes")


class MetricSink(Protocol):
    """A place for one worker's metrics."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Keep these numbers, of the given step, by their names."""
        ...


_sinks: WeakKeyDictionary[Worker, list[MetricSink]] = WeakKeyDictionary()


def report_to(sink: MetricSink) -> None:
    """Write the values of each later `laconic.log` of this worker to a sink, too, with the worker's communication.

    Beside the logged names a sink gets `laconic/seconds`, `laconic/step_seconds`, `laconic/waited_seconds`,
    `laconic/sent_bytes` and `laconic/received_bytes`: the figures of `laconic.traffic()` so far. Steps are those of the
    optimizer. Call it after `laconic.distribute`, on the workers that should report; several sinks are allowed.

    - `sink`: an object with `write(step, values)`, such as `laconic.integrations.tensorboard.TensorBoardSink(folder)`
      or `laconic.integrations.wandb.WandbSink(run)`.
    """
    worker = current()
    if worker is None:
        raise ContractError("report_to() is for workers, and this process is none yet: call laconic.distribute() first")
    _sinks.setdefault(worker, []).append(sink)


def write_to_sinks(worker: Worker | None, values: Mapping[str, float]) -> None:
    """Write what a worker has logged, and its figures so far, to its sinks; figures that nobody counts are left out."""
    if worker is None or worker not in _sinks:
        return
    traffic = traffic_of(worker)
    figures = {f"laconic/{name}": float(getattr(traffic, name)) for name in _FIGURES}
    known = {name: value for name, value in figures.items() if not math.isnan(value)}
    for sink in _sinks[worker]:
        sink.write(traffic.steps, {**values, **known})
