"""The `Meet` that engines hand to a compressor: requests, and draws that depend on nothing but their place."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.worker import Gather, GatherRagged, Reduce


@dataclass(frozen=True)
class Meeting:
    """One tensor's meeting in one step."""

    rank: int
    size: int
    step: int
    name: str
    seed: int = 0
    device: torch.device = torch.device("cpu")  # noqa: RUF009

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

    def draw(self, *, shared: bool) -> torch.Generator:
        place = f"{self.seed}/{self.step}/{self.name}/{'all' if shared else self.rank}"
        digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
        return torch.Generator(self.device).manual_seed(int.from_bytes(digest) >> 1)
