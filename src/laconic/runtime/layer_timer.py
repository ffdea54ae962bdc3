"""Timing of an iteration by parameter, forward from gate to gate and backward from gradient to gradient; prices of
messages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laconic.profile.fit import fit_line
from laconic.runtime.in_flight import InFlight, complete, concurrently
from laconic.runtime.tiers import Tier
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Reduce, Worker

_SHARES = (0.0, 0.01, 0.1, 0.3)  # of the model's bytes: the sizes of messages that are timed
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 24
_TRIALS = 3
_CONCURRENT = 4  # as in an iteration, where the start-up of one hides behind the bytes of another


class LayerTimer:
    """The computation time of each parameter's layer, as the median over iterations. Time spent waiting for others does
    not count."""

    def __init__(self, worker: Worker, count: int) -> None:
        self._clock: Callable[[], float] = lambda: worker.clock_seconds() - worker.waited_seconds
        self._forward: list[list[float]] = [[] for _ in range(count)]
        self._backward: list[list[float]] = [[] for _ in range(count)]
        self._forward_seconds: dict[int, float] = {}
        self._marked = 0.0
        self._running: int | None = None  # the parameter whose module computes now
        self.iterations = 0

    def begin(self) -> None:
        """Start timing a forward pass."""
        self._forward_seconds, self._running, self._marked = {}, None, self._clock()

    def gate(self, which: Sequence[int]) -> None:
        """Note that the module of these parameters begins to compute; its time is assigned to the first of them."""
        self._close()
        self._running = which[0] if which else None

    def forward_ended(self) -> None:
        """Stop timing the forward pass."""
        self._close()

    def gradient(self, i: int) -> None:
        """Assign the time since the previous gradient to parameter i."""
        now = self._clock()
        self._backward[i].append(max(0.0, now - self._marked))
        self._marked = now

    def backward_ended(self) -> None:
        """Complete the timing of an iteration."""
        for i, seconds in self._forward_seconds.items():
            self._forward[i].append(seconds)
        self._forward_seconds = {}
        self.iterations += 1

    def medians(self) -> tuple[list[float], list[float]]:
        """Return the median forward and backward seconds by parameter; parameters never seen took no time."""
        return tuple([statistics.median(x) if x else 0.0 for x in part] for part in (self._forward, self._backward))  # type: ignore[return-value]

    def _close(self) -> None:
        now = self._clock()
        if self._running is not None:
            self._forward_seconds[self._running] = self._forward_seconds.get(self._running, 0.0) + max(
                0.0, now - self._marked
            )
        self._marked = now


def prices_of(
    tier: Tier, worker: Worker, total_bytes: int, device: torch.device
) -> tuple[Price, Price | None, Price | None]:
    """Measure what a message takes among this tier's workers: dense, as reduce-scatter plus all-gather, and compressed
    where the sentence compresses. Messages of several sizes are timed, a few at a time. All workers call this
    together."""

    def dense(x: Tensor, halves: bool = False) -> Any:
        return concurrently([tier.carry(Reduce(x, "sum", 1.0, halves))])

    def compressed(x: Tensor) -> Any:
        spec = TensorSpec(f"tried {x.numel()}", tuple(x.shape), x.dtype)
        return replace(tier, memory={}).average([spec], [x], 0)

    price = _price(dense, worker, total_bytes, device)
    if not tier.architecture.collective:
        return price, None, None
    halved = _price(partial(dense, halves=True), worker, total_bytes, device)
    matrix = TensorSpec("", (64, 64), torch.float32)
    compressed_price = _price(compressed, worker, total_bytes, device) if tier.compressor.accepts(matrix) else None
    return price, halved, compressed_price


def _price(communicate: Callable[[Tensor], Any], worker: Worker, total_bytes: int, device: torch.device) -> Price:
    points: list[tuple[float, float]] = []
    for place, share in enumerate(_SHARES):
        least = _LEAST_BYTES * 4**place  # a line needs several sizes, also where the model is tiny
        side = max(1, int((min(max(share * total_bytes, least), _MOST_BYTES) / 4) ** 0.5))
        samples = []
        for _ in range(_TRIALS + 1):
            tensors = [torch.ones(side, side, device=device) for _ in range(_CONCURRENT)]
            begin = worker.clock_seconds()
            complete([InFlight(communicate(x)) for x in tensors])
            samples.append((worker.clock_seconds() - begin) / _CONCURRENT)
        points.append((4 * side * side, statistics.median(samples[1:])))  # the first sample finds connections cold
    return Price(*fit_line(points))
