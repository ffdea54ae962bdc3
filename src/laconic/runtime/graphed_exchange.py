"""The exchange of a bucket as CUDA graphs: what it computes between two messages is recorded once and then replayed.

On a GPU a bucket's exchange is a dozen launches, and the Python around them takes longer than the kernels. A graph is
one launch. Recording is possible because a bucket's gradients, memory and payloads lie at the same addresses in every
step. An exchange that reads something from the device on the host, or that depends on the step, is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.base import Carrying
from laconic.compression.bucket import BucketExchange
from laconic.runtime.in_flight import as_communication, run_exchange
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Request

_WARM_UP = 3  # exchanges before the first is recorded, in which kernels are compiled and tables made


@dataclass(frozen=True)
class _Segment:
    """What is computed up to a request: a graph, the request, and the memory in which its answer is expected."""

    graph: torch.cuda.CUDAGraph
    request: Request | None
    answer: Tensor | None


class GraphedExchange:
    """The exchange of one bucket in successive steps; graphs of one memory `pool` never run side by side."""

    def __init__(self, specs: tuple[TensorSpec, ...], pool: Any) -> None:
        self.specs, self._pool = specs, pool
        self._runs = 0
        self._segments: list[_Segment] | None = None
        self.refusal: str | None = None  # why this exchange is not recorded

    def run(
        self, make: Callable[[bool], BucketExchange], carry: Callable[[Request], Carrying]
    ) -> Generator[Any, Any, None]:
        """Exchange the bucket as it is now. `make` begins an exchange: of this step, or one that may be repeated in all
        steps, which raises `StepDependent` where it asks for what differs between them."""
        self._runs += 1
        if self._runs <= _WARM_UP or self.refusal is not None:
            yield from run_exchange(make(False), carry)
        else:
            yield from self._record(make, carry)

    @property
    def is_recorded(self) -> bool:
        return self._segments is not None

    def replay(self, carry: Callable[[Request], Carrying]) -> Generator[Any, Any, None]:
        """Exchange the bucket as it is now, by the graphs that were recorded."""
        for segment in self._segments or ():
            segment.graph.replay()
            if segment.request is not None:
                result = yield from as_communication(carry(segment.request))
                if result is not segment.answer and segment.answer is not None:
                    segment.answer.copy_(result)

    def _record(
        self, make: Callable[[bool], BucketExchange], carry: Callable[[Request], Carrying]
    ) -> Generator[Any, Any, None]:
        """Record each part of the exchange, and carry it out. Recording computes nothing: if the first part cannot be
        recorded, the exchange is begun again."""
        exchange, segments, answer = make(True), list[_Segment](), None
        while True:
            graph = torch.cuda.CUDAGraph()
            request: Request | None = None
            try:
                request = self._recorded(graph, exchange, answer)
            except Exception as error:
                self.refusal = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                if segments:
                    raise
                yield from run_exchange(make(False), carry)
                return
            graph.replay()
            if request is None:
                segments.append(_Segment(graph, None, None))
                self._segments = segments
                return
            answer = yield from as_communication(carry(request))
            segments.append(_Segment(graph, request, answer))

    def _recorded(self, graph: torch.cuda.CUDAGraph, exchange: BucketExchange, answer: Any) -> Request | None:
        torch.cuda.synchronize()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            return exchange.send(answer)
        except StopIteration:
            return None
        finally:
            graph.capture_end()
