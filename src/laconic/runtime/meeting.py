"""The `Meet` that engines hand to a compressor: requests, and keys of random draws that depend on their place alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from laconic.kernels.draws import key_of
from laconic.worker import (
    Broadcast,
    CodedSum,
    Coding,
    Gather,
    GatherRagged,
    HopCode,
    Merge,
    Reduce,
    Scatter,
    ScatterRagged,
    Swap,
)


@dataclass(frozen=True)
class Meeting:
    """The exchange of one tensor in one step, as its compressor sees it."""

    rank: int
    size: int
    step: int
    name: str
    seed: int = 0
    rate: float = 1.0
    settings: Mapping[str, float] = field(default_factory=dict)
    logged: Callable[[str], float | None] = lambda metric: None
    factors: Callable[[], tuple[Tensor, Tensor] | None] = lambda: None

    def mean(self, tensor: Tensor) -> Reduce:
        return Reduce(tensor, "mean")

    def sum(self, tensor: Tensor) -> Reduce:
        return Reduce(tensor, "sum")

    def max(self, tensor: Tensor) -> Reduce:
        return Reduce(tensor, "max")

    def gather(self, tensor: Tensor) -> Gather:
        return Gather(tensor)

    def gather_ragged(self, tensor: Tensor) -> GatherRagged:
        return GatherRagged(tensor)

    def scatter(self, tensor: Tensor) -> Scatter:
        return Scatter(tensor)

    def scatter_ragged(self, rows: Sequence[Tensor]) -> ScatterRagged:
        return ScatterRagged(torch.cat(list(rows)), tuple((row.numel(),) for row in rows))

    def broadcast(self, tensor: Tensor, source: int) -> Broadcast:
        return Broadcast(tensor, source)

    def merge(self, tensor: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Merge:
        return Merge(tensor, combine)

    def coded_sum(self, tensor: Tensor, code: HopCode) -> CodedSum:
        return CodedSum(tensor, Coding((code,), (tensor.numel(),)))

    @property
    def _everyone(self) -> str:
        return "all"

    def key(self, what: str = "", *, shared: bool = False) -> int:
        place = f"{self.seed}/{self.step}/{self.name}/{self._everyone if shared else self.rank}/{what}"
        return key_of(place)


@dataclass(frozen=True)
class EdgeMeeting(Meeting):
    """The exchange of one tensor with one neighbour, as its compressor sees it."""

    other: int = 0

    def swap(self, tensor: Tensor) -> Swap:
        return Swap(tensor)

    @property
    def _everyone(self) -> str:
        return f"{min(self.rank, self.other)}-{max(self.rank, self.other)}"
