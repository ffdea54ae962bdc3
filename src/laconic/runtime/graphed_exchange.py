"""The exchange of a bucket as CUDA graphs: what it computes between two messages is recorded once and then replayed.

On a GPU a bucket's exchange is a dozen launches, and the Python around them takes longer than the kernels. A graph is
one launch. Recording is possible because a bucket's gradients, memory and payloads lie at the same addresses in every
step. An exchange that reads something from the device on the host, or that depends on the step, is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from laconic.compression.bucket import BucketExchange, KeyTables, Moment
from laconic.runtime.in_flight import handles_of, is_stream_ordered, run_exchange
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Gather, Request, Scatter

_WARM_UP = 3  # exchanges before the first is recorded, in which kernels are compiled and tables made


@dataclass(frozen=True)
class _Segment:
    """What is computed up to a request: a graph, the request, and the memory in which its answer is expected."""

    graph: torch.cuda.CUDAGraph
    request: Request | None
    answer: Tensor | None


class GraphedExchange:
    """The exchange of one bucket in successive steps. `tables` hold the keys of draws.

    Exchanges of which only the stream has to wait for messages run one after another, and share a memory `pool`. Others
    may be at work side by side, in any order: what one of them has sent must not lie where another computes, so each
    has a pool of its own.
    """

    def __init__(self, specs: tuple[TensorSpec, ...], tables: KeyTables, pool: Any) -> None:
        self.specs, self._tables, self._pool = specs, tables, pool
        self._runs = 0
        self._side_by_side = False  # whether others may compute while this one waits for a message
        self._answers: list[Any] = []  # of an earlier exchange; None where the request's tensor is the answer
        self._segments: list[_Segment] = []  # as many as were recorded; while they live, so does the pool
        self.is_recorded = False
        self.refusal: str | None = None  # why this exchange is not recorded

    def run(
        self, make: Callable[[bool], BucketExchange], moment: Moment, carry: Callable[[Request], Communication[Any]]
    ) -> Communication[Any]:
        """Exchange the bucket as it is now. `make` begins an exchange: of this step, or one that may be repeated in all
        steps, which raises `StepDependent` where it asks for what differs between them."""
        self._runs += 1
        if self._runs > _WARM_UP and self.refusal is None:
            try:
                self._record(make(True))
            except Exception as error:  # nothing has been computed: the exchange is made as it is
                self.refusal = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            else:
                self.is_recorded = True
                return self.replay(moment, carry)
        return self._watched(run_exchange(make(False), self._noting(carry) if self._runs == _WARM_UP else carry))

    def replay(self, moment: Moment, carry: Callable[[Request], Communication[Any]]) -> Communication[None]:
        """Exchange the bucket as it is now, by the graphs that were recorded."""
        self._tables.renew(moment)
        for segment in self._segments:
            segment.graph.replay()
            if segment.request is not None:
                result = yield from carry(segment.request)
                if segment.answer is not None and result.data_ptr() != segment.answer.data_ptr():
                    segment.answer.copy_(result)

    def _watched(self, communication: Communication[Any]) -> Communication[Any]:
        """Note whether the host waits for a message."""
        answer = None
        while True:
            try:
                awaited = communication.send(answer)
            except StopIteration as end:
                return end.value
            self._side_by_side |= not all(map(is_stream_ordered, handles_of(awaited)))
            answer = yield awaited

    def _noting(self, carry: Callable[[Request], Communication[Any]]) -> Callable[[Request], Communication[Any]]:
        """Carry requests out, and keep their answers as the memory in which later ones are expected."""

        def carried(request: Request) -> Communication[Any]:
            answer = yield from carry(request)
            in_place = isinstance(answer, Tensor) and answer.data_ptr() == request.tensor.data_ptr()
            self._answers.append(None if in_place else answer)
            return answer

        return carried

    def _record(self, exchange: BucketExchange) -> None:
        """Record every part of an exchange; nothing is computed, and nothing is sent."""
        if not all(answer is None or isinstance(answer, Tensor) for answer in self._answers):
            raise TypeError("messages of different lengths are no memory of a graph")
        torch.cuda.synchronize()
        if self._side_by_side:
            self._pool = torch.cuda.graph_pool_handle()
        answers, given = iter(self._answers), None
        while True:
            graph = torch.cuda.CUDAGraph()
            request = self._recorded(graph, exchange, given)
            if request is None:
                self._segments.append(_Segment(graph, None, None))
                return
            answer = next(answers)
            if isinstance(request, Gather | Scatter):
                request = replace(request, out=answer)
            self._segments.append(_Segment(graph, request, answer))
            given = request.tensor if answer is None else answer

    def _recorded(self, graph: torch.cuda.CUDAGraph, exchange: BucketExchange, answer: Any) -> Request | None:
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            return exchange.send(answer)
        except StopIteration:
            return None
        finally:
            graph.capture_end()
