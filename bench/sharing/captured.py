"""A switched model whose stages are CUDA graphs: its host has little to launch, so that a GPU computes without gaps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from laconic.cluster.sharing.switching import Switched


class Captured:
    """A chain of stages, each of which is captured as a graph on the region's addresses; on a CPU stages are called.

    - `switched`: the model, a chain.
    - `stages`: its parts, in their order.
    - `x`: the batch that is computed.
    """

    def __init__(self, switched: Switched, stages: Sequence[nn.Module], x: Tensor) -> None:
        self._switched, self._stages, self._values = switched, stages, [x]
        self._graphs: list[torch.cuda.CUDAGraph] = []
        numbers = {id(layer): number for number, layer in enumerate(switched.layers)}
        inside = [[numbers[id(part)] for part in stage.modules() if id(part) in numbers] for stage in stages]
        self._firsts, self.ends = [min(own) for own in inside], [max(own) + 1 for own in inside]
        switched.bring()
        if x.device.type == "cuda":
            torch.cuda.synchronize()
            with torch.no_grad():
                for stage in stages:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        self._values.append(stage(self._values[-1]))
                    self._graphs.append(graph)

    @property
    def nbytes(self) -> list[float]:
        """The bytes of each stage."""
        layers = self._switched.nbytes
        return [sum(layers[begin:end]) for begin, end in itertools.pairwise([0, *self.ends])]

    def start(self, ends: Sequence[int]) -> Tensor:
        """Bring the model in groups of stages, and return its outputs, which the next start overwrites."""
        self._switched.send([self.ends[end - 1] for end in ends])
        return self.compute()

    def compute(self) -> Tensor:
        """Compute on what is there or comes, and return the outputs."""
        with torch.no_grad():
            if not self._graphs:
                value = self._values[0]
                for stage in self._stages:
                    value = stage(value)
                return value
            for first, graph in zip(self._firsts, self._graphs, strict=True):
                self._switched.arrive(first)
                graph.replay()
        return self._values[-1]

    def stage_seconds(self, repeats: int = 9) -> list[float]:
        """Return the seconds of each stage on a GPU; the medians over repetitions."""
        rows = []
        for _ in range(repeats):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(self._graphs) + 1)]
            marks[0].record()
            for mark, graph in zip(marks[1:], self._graphs, strict=True):
                graph.replay()
                mark.record()
            torch.cuda.synchronize()
            rows.append([begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(marks)])
        found: list[float] = np.median(np.array(rows), axis=0).tolist()
        return found
