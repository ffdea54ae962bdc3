"""Gradients as CUDA graphs: small models wait for the launches of their kernels, and a graph has one launch for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns the gradient and the mean loss over samples, whose numbers it is given."""

WORTH = 100
"""How often batches of a size are computed before their graph is recorded, which takes as long as many of them."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph, the place where it reads the numbers of samples, and those where it leaves its results."""

    graph: torch.cuda.CUDAGraph
    samples: Tensor
    gradient: Tensor
    loss: Tensor


class Recorded:
    """A computation that is recorded for each size of a batch that comes often, and replayed.

    It reads parameters and data where they were when it was recorded, so that they must be changed in place. A loss
    that asks for values on the way, or chooses its operations by them, cannot be recorded: CUDA refuses it.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._seen: Counter[int] = Counter()
        self._recordings: dict[int, Recording] = {}
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def __call__(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        if not samples.is_cuda:
            return self._compute(samples)
        with torch.cuda.device(samples.device):  # streams and graphs belong to the current one
            return self._on_cuda(samples)

    def _on_cuda(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        size = len(samples)
        self._seen[size] += 1
        if self._seen[size] <= WORTH:
            return self._on_the_side(samples)
        if size not in self._recordings:
            self._recordings[size] = self._record(samples)
        found = self._recordings[size]
        found.samples.copy_(samples)
        found.graph.replay()
        return found.gradient.clone(), found.loss.clone()  # the next replay writes over them

    def _on_the_side(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute on another stream, as recording does: libraries set themselves up for a stream when it is first
        used."""
        here, self._side = torch.cuda.current_stream(), self._side or torch.cuda.Stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            result = self._compute(samples)
        here.wait_stream(self._side)
        return result

    def _record(self, samples: Tensor) -> Recording:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        kept, graph = samples.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            gradient, loss = self._compute(kept)
        return Recording(graph, kept, gradient, loss)
