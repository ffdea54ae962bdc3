"""The cases on which a compressor is tried: workers that bring tensors, from the smallest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Outcome, State
from laconic.compression.optional import settling_of
from laconic.testing.in_memory import meet
from laconic.testing.inputs import KINDS, drawn
from laconic.values.tensor_spec import TensorSpec

SHAPES = ((0,), (1,), (2,), (3,), (1, 1), (7,), (3, 2), (17,), (2, 3, 2), (9, 7), (24, 20), (1001,))
WORKERS = (1, 2, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Meeting:
    """Workers that bring a tensor each, all of one shape and kind."""

    workers: int
    shape: tuple[int, ...]
    kind: str = "normal"
    dtype: torch.dtype = torch.float32

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec("x", self.shape, self.dtype)

    def inputs(self, step: int = 0) -> list[Tensor]:
        """Return what each worker brings in a step."""
        return [drawn(self.kind, self.shape, 31 * step + rank, self.dtype) for rank in range(self.workers)]

    def begin(self, compressor: Compressor) -> list[State]:
        return [compressor.init(self.spec) for _ in range(self.workers)]

    def settled(self, compressor: Compressor) -> tuple[list[State], int]:
        """Return each worker's state when the messages are as they are declared, and the number of steps until then."""
        states, step = self.begin(compressor), 0
        for step in range(settling_of(compressor)):
            states = states_of(meet(compressor, self.inputs(step), states, step))
        return states, settling_of(compressor)

    def __str__(self) -> str:
        who = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{who} with {self.kind} values of shape {list(self.shape)} in {dtype}"


def meetings(
    compressor: Compressor,
    workers: tuple[int, ...] = WORKERS,
    kinds: tuple[str, ...] = KINDS,
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
) -> Iterator[Meeting]:
    """Yield meetings over tensors that the compressor accepts, the smallest tensors and groups first."""
    for shape in sorted(shapes, key=prod):
        for size in workers:
            for kind in kinds:
                for dtype in dtypes:
                    found = Meeting(size, shape, kind, dtype)
                    if compressor.accepts(found.spec):
                        yield found


def states_of(outcomes: list[Outcome]) -> list[State]:
    return [outcome.state for outcome in outcomes]


def copied(states: list[State]) -> list[State]:
    """Return states as a checkpoint would keep them."""
    return [{key: value.clone() for key, value in state.items()} for state in states]
