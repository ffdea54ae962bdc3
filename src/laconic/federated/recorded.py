"""Gradients as CUDA graphs: small models wait for the launches of their kernels, and a graph has one launch for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Compute = Callable[..., tuple[Tensor, Tensor]]
"""Returns the gradient and the mean loss over samples, whose numbers it is given, or those of several clients."""

WORTH = 100
"""How often batches of a size are computed before their graph is recorded, which takes as long as many of them."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph, the places where it reads what it is given, and those where it leaves its results."""

    graph: torch.cuda.CUDAGraph
    given: tuple[Tensor, ...]
    gradient: Tensor
    loss: Tensor


class Recorded:
    """A computation that is recorded for each size of a batch that comes often, and replayed.

    - `worth`: how often it is computed before it is recorded.

    It reads parameters and data where they were when it was recorded, so that they must be changed in place. A loss
    that asks for values on the way, or chooses its operations by them, cannot be recorded: CUDA refuses it.
    """

    def __init__(self, compute: Compute, worth: int = WORTH) -> None:
        self._compute, self._worth = compute, worth
        self._seen: Counter[tuple[torch.Size, ...]] = Counter()
        self._recordings: dict[tuple[torch.Size, ...], Recording] = {}
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def __call__(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        if not given[0].is_cuda:
            return self._compute(*given)
        with torch.cuda.device(given[0].device):  # streams and graphs belong to the current one
            return self._on_cuda(*given)

    def _on_cuda(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        size = tuple(x.shape for x in given)
        self._seen[size] += 1
        if self._seen[size] <= self._worth:
            return self._on_the_side(*given)
        if size not in self._recordings:
            self._recordings[size] = self._record(*given)
        found = self._recordings[size]
        for place, x in zip(found.given, given, strict=True):
            place.copy_(x)
        found.graph.replay()
        return found.gradient.clone(), found.loss.clone()  # the next replay writes over them

    def _on_the_side(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """Compute on another stream, as recording does: libraries set themselves up for a stream when it is first
        used."""
        here, self._side = torch.cuda.current_stream(), self._side or torch.cuda.Stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            result = self._compute(*given)
        here.wait_stream(self._side)
        return result

    def _record(self, *given: Tensor) -> Recording:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        kept, graph = tuple(x.clone() for x in given), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            gradient, loss = self._compute(*kept)
        return Recording(graph, kept, gradient, loss)
