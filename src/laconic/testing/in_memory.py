"""An in-memory exchange among any number of workers: requests are answered by their definition, in rank order.

There are no processes and no clock, so that a compressor can be tried, measured and tested on its own. `Stopwatch`
records how long a worker's own encoding and decoding take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laconic.collective.execute import execute
from laconic.collective.generators import make_program
from laconic.collective.program import Program
from laconic.compression.base import Compressor, Outcome, State
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import (
    Broadcast,
    CodedSum,
    Coding,
    Gather,
    GatherRagged,
    Handle,
    Merge,
    Reduce,
    Scatter,
    ScatterRagged,
)


def spec_of(x: Tensor, name: str = "x") -> TensorSpec:
    """Return the specification of a tensor under the given name."""
    return TensorSpec(name, tuple(x.shape), x.dtype)


@dataclass
class Stopwatch:
    """Seconds that rank 0 spends until its first request (`encode_seconds`) and after it (`decode_seconds`), and the
    bytes of its payloads."""

    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    payload_bytes: list[int] = field(default_factory=list)


def meet(
    compressor: Compressor,
    inputs: Sequence[Tensor],
    states: Sequence[State] | None = None,
    step: int = 0,
    rate: float = 1.0,
    seed: int = 0,
    payloads: list[list[tuple[str, Tensor]]] | None = None,
    watch: Stopwatch | None = None,
) -> list[Outcome]:
    """Run one exchange of all workers and return their outcomes; `payloads` is filled with what each worker sent,
    request by request."""
    size = len(inputs)
    states = [compressor.init(spec_of(x)) for x in inputs] if states is None else states
    exchanges = [
        compressor.exchange(x.clone(), state, Meeting(rank, size, step, "x", seed, rate))
        for rank, (x, state) in enumerate(zip(inputs, states, strict=True))
    ]
    outcomes: list[Any] = [None] * size
    answers: list[Any] = [None] * size
    while True:
        requests: list[Any] = []
        for rank, exchange in enumerate(exchanges):
            begin = time.perf_counter()
            try:
                requests.append(exchange.send(answers[rank]))
            except StopIteration as end:
                outcomes[rank] = end.value
            if watch is not None and rank == 0:
                _add_time(watch, time.perf_counter() - begin, requests)
        if not requests:
            return outcomes
        assert len(requests) == size, "all workers make the same number of requests"
        if payloads is not None:
            payloads.extend([[] for _ in range(size - len(payloads))])
            for own_payloads, request in zip(payloads, requests, strict=True):
                own_payloads.append((type(request).__name__, request.tensor.clone()))
        answers = answer_requests(requests)


def _add_time(watch: Stopwatch, seconds: float, requests: Sequence[Any]) -> None:
    if watch.payload_bytes:
        watch.decode_seconds += seconds
    else:
        watch.encode_seconds += seconds
    watch.payload_bytes += [request.tensor.nbytes for request in requests]


def answer_requests(requests: Sequence[Any]) -> list[Any]:
    """Return what each worker receives in answer to the workers' equal requests."""
    first, size = requests[0], len(requests)
    assert all(type(r) is type(first) for r in requests)
    tensors = [r.tensor for r in requests]
    if isinstance(first, GatherRagged):
        return [[_ragged(r) for r in requests] for _ in range(size)]
    if isinstance(first, ScatterRagged):
        rows = [r.tensor.clone().split([sum(row) for row in r.lengths]) for r in requests]
        return [[row[rank] for row in rows] for rank in range(size)]
    if isinstance(first, CodedSum):
        return run_in_memory(make_program("ring", size), tensors, [r.coding for r in requests])
    assert len({(x.shape, x.dtype) for x in tensors}) == 1, "the tensors of all workers have the same shape and type"
    if isinstance(first, Reduce):
        stacked = torch.stack(tensors)
        total = stacked.amax(0) if first.op == "max" else stacked[0].clone()
        if first.op != "max":
            for x in stacked[1:]:
                total += x
            total = total / size if first.op == "mean" else total
        return [total.clone() for _ in range(size)]
    if isinstance(first, Gather):
        return [torch.stack(tensors) for _ in range(size)]
    if isinstance(first, Scatter):
        return [torch.stack([x[rank] for x in tensors]) for rank in range(size)]
    if isinstance(first, Broadcast):
        return [tensors[first.source].clone() for _ in range(size)]
    assert isinstance(first, Merge)
    distance = 1
    while distance < size:
        for rank in range(0, size - distance, 2 * distance):
            tensors[rank] = first.combine(tensors[rank], tensors[rank + distance])
        distance *= 2
    return [tensors[0].clone() for _ in range(size)]


def run_in_memory(
    program: Program, vectors: Sequence[Tensor], codings: Sequence[Coding | None] | None = None
) -> list[Tensor]:
    """Carry a program out on all ranks' vectors, in place, and return them."""
    groups = [_StepByStep(rank, len(vectors)) for rank in range(len(vectors))]
    each = [None] * len(vectors) if codings is None else codings
    running = [
        execute(program, vector, group, coding=coding)  # type: ignore[arg-type]  # all of a group that programs use
        for vector, group, coding in zip(vectors, groups, each, strict=True)
    ]
    for _ in range(program.steps):
        for communication in running:
            communication.send(None)
        for group in groups:
            for tensor, source in group.receives:
                tensor.copy_(groups[source].sends[group.rank].pop(0))
    for communication in running:
        next(communication, None)
    return list(vectors)


class _StepByStep:
    """A member of a group whose messages are delivered when all members have reached the end of a step."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sends: dict[int, list[Tensor]] = {}
        self.receives: Sequence[tuple[Tensor, int]] = []

    def swap(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], control: float = 0.0
    ) -> list[Handle]:
        self.sends = {}
        for tensor, to in sends:
            self.sends.setdefault(to, []).append(tensor.clone())
        self.receives = receives
        return []


def _ragged(request: GatherRagged) -> Tensor | list[Tensor]:
    """Return what one worker's request adds to everybody's list: its vector, or the parts of it."""
    if request.parts is None:
        return request.tensor.clone()
    return list(request.tensor.clone().split(list(request.parts)))
