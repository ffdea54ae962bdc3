"""Measuring the links: collectives of many sizes, one after another and several at once, among all workers.

All workers call this together. Where processes share cores, a small collective costs their scheduling rather than the
network's latency, two at once are served alternately, and none progresses much while all workers compute; so each size
is timed in all three ways, and nothing is assumed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from laconic.profile.fit import operation_times, pace_beside, shared_seconds
from laconic.values.profile import LinkTimes, OperationTimes, Point
from laconic.values.wire import wire_factor
from laconic.worker import Group, Handle

LANES = 2  # gloo's threads
_SIZES_BYTES = {  # sent per worker; the size of the whole model is added
    ("all_reduce", torch.float32): (96, 24576, 98304, 393216, 1572864),
    ("all_reduce", torch.float16): (393216, 1572864),
    ("all_reduce", torch.bfloat16): (393216, 1572864),
    ("all_gather", torch.float32): (96, 24576, 393216, 1572864),
    ("all_to_all", torch.float32): (96, 24576, 393216, 1572864),
    ("broadcast", torch.float32): (96, 393216),
}
"""The collectives that techniques use, with the sizes to time. Reductions depend on the dtype, small ones do not."""

_TRIAL_SECONDS = 0.06  # a trial repeats an operation until it lasts about so long
_MOST = 16
_PRODUCTS = 200


class LinkTrials:
    """Trials of every operation and size, a round at a time, so that a host's noise affects all of them alike."""

    def __init__(self, group: Group, largest_bytes: float) -> None:
        self._group = group
        self._trials = [
            _Trials(group, name, dtype, numel)
            for (name, dtype), sizes in _SIZES_BYTES.items()
            for numel in _numbers(name, dtype, sizes, group.size, largest_bytes)
        ]
        self._computing: list[float] = []

    def round(self) -> None:
        """Run one more trial of each operation and size; all workers must call this together."""
        self._computing += _timed(self._group, [_compute])
        for trials in self._trials:
            trials.run()

    def result(self, bits_per_second: float | None, delay_seconds: float) -> LinkTimes:
        """Return the medians over all rounds, with the nominal rate and delay of the network."""
        computing = statistics.median(self._computing)
        times: list[OperationTimes] = []
        for name, dtype in dict.fromkeys((t.name, t.dtype) for t in self._trials):
            points = [t.point(computing) for t in self._trials if (t.name, t.dtype) == (name, dtype)]
            for plain in times:
                if plain.operation == name:
                    points += [p for p in plain.points if p.wire_bytes < min(q.wire_bytes for q in points)]
            times.append(operation_times(name, str(dtype).removeprefix("torch."), points))
        return LinkTimes(bits_per_second, delay_seconds, tuple(times))


class _Trials:
    """Trials of one operation at one size: sequential, concurrent, and concurrent beside computing."""

    def __init__(self, group: Group, name: str, dtype: torch.dtype, numel: int) -> None:
        self.name, self.dtype, self._group = name, dtype, group
        self._wire_bytes = numel * dtype.itemsize * wire_factor(name, group.size)
        self._numel, self._count = numel, 0
        self._seen: list[list[float]] = []

    def run(self) -> None:
        """Run one trial after an untimed collective: idle connections slow the first message, unlike in training."""
        if not self._count:
            self._sequentially(self._tensors(1))
            (once,) = _timed(self._group, [partial(self._sequentially, self._tensors(1))])
            self._count = max(1, min(_MOST, round(_TRIAL_SECONDS / once)))
        tensors = self._tensors(max(self._count, LANES))
        self._sequentially(tensors[:1])
        alone, together, both = _timed(
            self._group,
            [
                partial(self._sequentially, tensors[: self._count]),
                partial(self._concurrently, tensors),
                partial(self._concurrently, tensors, _compute),
            ],
        )
        self._seen.append([alone / self._count, together, both])

    def point(self, computing_seconds: float) -> Point:
        alone, together, both = (statistics.median(column) for column in zip(*self._seen, strict=True))
        shared = shared_seconds(alone, together, max(self._count, LANES), LANES)
        return Point(self._wire_bytes, alone, shared, pace_beside(together, computing_seconds, both))

    def _tensors(self, count: int) -> list[torch.Tensor]:
        return [torch.zeros(self._numel, dtype=self.dtype) for _ in range(count)]

    def _sequentially(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self._start(tensor).wait()

    def _concurrently(self, tensors: Sequence[torch.Tensor], beside: Callable[[], None] | None = None) -> None:
        handles = [self._start(tensor) for tensor in tensors]
        if beside is not None:
            beside()
        for handle in handles:
            handle.wait()

    def _start(self, tensor: torch.Tensor) -> Handle:
        operation: Callable[[torch.Tensor], Handle] = getattr(self._group, self.name)
        return operation(tensor)


def _timed(group: Group, acts: Sequence[Callable[[], None]]) -> list[float]:
    """Return the seconds of each action, from a common start until the last worker has finished."""
    took = []
    for act in acts:
        group.barrier().wait()
        begin = time.perf_counter()
        act()
        took.append(time.perf_counter() - begin)
    longest: list[float] = group.all_reduce(torch.tensor(took, dtype=torch.float64), "max", control=1.0).wait().tolist()
    return longest


def _compute() -> None:
    """Compute for some milliseconds as models do: small products of matrices."""
    a, b = torch.ones(32, 256), torch.ones(256, 768)
    for _ in range(_PRODUCTS):
        (a @ b).relu_()


def _numbers(name: str, dtype: torch.dtype, sizes: Sequence[float], size: int, largest_bytes: float) -> list[int]:
    """Return the numbers of elements to time, divisible by the number of workers: from a few to the whole model."""
    if size < 2:
        return []
    whole = largest_bytes / torch.float32.itemsize
    if name in ("all_gather", "broadcast"):
        whole /= size  # an all-gather is half of an all-reduce; broadcasts are small in a step
    numbers = [n / (dtype.itemsize * wire_factor(name, size)) for n in sizes]
    return sorted({max(1, round(n / size)) * size for n in [*(n for n in numbers if n < whole / 2), whole]})
