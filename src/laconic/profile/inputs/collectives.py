"""Collectives in a profiler's trace: the time of each size, as `LinkTimes`.

Sizes are recorded with NCCL's kernels since torch 2.2, otherwise with the annotation that launched them
(`nccl:all_reduce`, `gloo:all_reduce`), where shapes were recorded. A collective's time includes waiting for the last
worker, so of each size the shortest time is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from laconic.profile.fit import operation_times
from laconic.profile.inputs.dims import WIDTHS, dtype_of, inputs_of
from laconic.profile.inputs.trace import Event, Trace
from laconic.values.profile import LinkTimes, Point
from laconic.values.wire import wire_factor

CARRIED_BY = {"reduce_scatter": "all_to_all"}  # operations that send the same bytes as another

_NAMES = {  # without underscores
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}


def is_communication(event: Event) -> bool:
    """Return whether an event is a kernel or an annotation of a collective library."""
    name = event.name.lower()
    return name.startswith(("nccl", "rccl", "gloo:", "mpi:", "ucc:", "xccl:")) or "collective name" in event.args


def links(trace: Trace) -> tuple[LinkTimes | None, int]:
    """Return the times of the trace's collectives, or None if no size was recorded, and the number of workers."""
    seen: dict[tuple[str, str, int], dict[float, float]] = {}
    for operation, dtype, nbytes, workers, seconds in _timed(trace):
        sizes = seen.setdefault((operation, dtype, workers), {})
        sent = nbytes * _sent(operation, workers)
        if sent > 0 and seconds > 0:
            sizes[sent] = min(sizes.get(sent, math.inf), seconds)
    if not any(seen.values()):
        return None, trace.workers
    workers = max(workers for (_, _, workers), sizes in seen.items() if sizes)  # groups of fewer are another network
    times = [
        operation_times(operation, dtype, [Point(sent, seconds, seconds) for sent, seconds in sizes.items()])
        for (operation, dtype, among), sizes in seen.items()
        if sizes and among == workers
    ]
    return LinkTimes(None, 0.0, tuple(times)), workers


def _timed(trace: Trace) -> Iterator[tuple[str, str, float, int, float]]:
    """Yield operation, dtype, bytes given by a worker, workers and seconds of each collective."""
    kernels = [e for e in trace.events if e.category == "kernel" and is_communication(e)]
    if any("in msg nelems" in kernel.args for kernel in kernels):
        for kernel in kernels:
            if operation := _operation(str(kernel.args.get("collective name", kernel.name))):
                dtype = dtype_of(str(kernel.args.get("dtype", "")))
                workers = _workers(kernel, trace)
                yield operation, dtype, _elements(kernel) * WIDTHS.get(dtype, 1), workers, kernel.seconds
        return
    launched = [e for e in trace.events if not e.on_gpu and re.match(r"(nccl|gloo|mpi|ucc|xccl):", e.name)]
    if not launched:
        launched = [e for e in trace.events if e.name == "record_param_comms" and "in msg nelems" in e.args]
    if kernels and len(kernels) != len(launched):
        return  # kernels cannot be matched to their launches
    for event, lasted in zip(launched, kernels or launched, strict=True):
        operation = _operation(str(event.args.get("collective name", event.name)))
        shapes = list(inputs_of(event))
        if operation and (shapes or "in msg nelems" in event.args):
            dtype = shapes[0][1] if shapes else dtype_of(str(event.args.get("dtype", "")))
            elements = sum(math.prod(shape) for shape, _ in shapes) if shapes else _elements(event)
            workers = _workers(event, trace)
            yield operation, dtype, elements * WIDTHS.get(dtype, 1), workers, lasted.seconds


def _elements(event: Event) -> float:
    value = event.args.get("in msg nelems", 0)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0.0


def _workers(event: Event, trace: Trace) -> int:
    value = event.args.get("group size")
    return value if isinstance(value, int) and 0 < value < 10**7 else trace.workers


def _operation(name: str) -> str | None:
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((known for key, known in _NAMES.items() if key in plain), None)


def _sent(operation: str, workers: int) -> float:
    """Return the bytes that the busiest worker sends for each byte of its buffer."""
    return wire_factor(CARRIED_BY.get(operation, operation), workers) if workers > 1 else 0.0
