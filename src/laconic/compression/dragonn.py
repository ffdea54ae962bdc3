"""DRAGONN: what passes a threshold hashes itself into a table, so that nothing need be counted or moved up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.dgc import DGC, EXACT, sampled
from laconic.compression.payload import pack
from laconic.compression.select import share_of
from laconic.compression.sparse import largest
from laconic.compression.thresholds import passing
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "dragonn",
    paper="Wang, Xu, Wu, Shrivastava, Ng, ICML 2022",
    formula="as dgc, of candidates |v_i| ≥ t only those that keep slot hash(i) in a table of 4k",
)
@dataclass(frozen=True)
class Dragonn(DGC):
    """As dgc, of whose candidates each takes a hashed slot of a table of `table`·k: who is overwritten is said later.

    Hashes are new in every step. Of those that meet in a slot the last in order stays, on every device. A tensor is
    compressed where the model says that it pays, `compress_seconds` < dense - sparse: an all-reduce of 4n bytes by a
    ring against a gather of 8k, on links of `bandwidth` and `latency`; else it goes dense. What is not finite is said
    unless it is overwritten, and forgotten.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "elementwise"
    table: float = knob(4.0, low=1, doc="slots for each coordinate that should be said")
    workers: int = knob(4, low=1, doc="of the model: how many there are")
    latency: float = knob(2e-5, low=0, doc="of the model: seconds before a message's first byte")
    bandwidth: float = knob(1.25e9, above=0, doc="of the model: bytes a second")
    fixed: float = knob(2e-5, low=0, doc="of the model: seconds to compress any tensor")
    each: float = knob(1e-10, low=0, doc="of the model: seconds more for each of its elements")

    def compress_seconds(self, numel: int) -> float:
        return self.fixed + self.each * numel

    def dense_seconds(self, numel: int) -> float:
        return 2 * (self.workers - 1) * (self.latency + 4 * numel / self.workers / self.bandwidth)

    def sparse_seconds(self, numel: int) -> float:
        return (self.workers - 1) * (self.latency + 8 * share_of(self.ratio, numel) / self.bandwidth)

    def accepts(self, spec: TensorSpec) -> bool:
        n = spec.numel
        gain = self.dense_seconds(n) - self.sparse_seconds(n)
        return super().accepts(spec) and self.compress_seconds(n) < gain

    def candidates(self, flat: Tensor, meet: Meet) -> Tensor:
        """At least the threshold; exactly k, where the tensor is small enough to sort."""
        k = share_of(self.share(meet.step), flat.numel())
        return largest(flat, k) if flat.numel() <= EXACT else passing(flat, sampled(flat, k, meet))

    def choose(self, flat: Tensor, meet: Meet) -> Tensor:
        places = self.candidates(flat, meet)
        size = max(1, int(self.table * share_of(self.share(meet.step), flat.numel())))
        slots = kernels.draws.at(meet.key("slots"), places) * size >> kernels.draws.BITS
        table = places.new_full((size,), -1).scatter_reduce_(0, slots, places, "amax")
        return table[table >= 0]

    def write(self, places: Tensor, values: Tensor) -> Tensor:
        return pack(places.to(torch.int32), values)

    def read(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        places, values = payload.clone().view(2, -1)
        return places.view(torch.int32).long(), values.view(torch.float32)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """After the warm-up: every slot of the table, where candidates are not counted."""
        k = share_of(self.ratio, spec.numel)
        return 8 * (k if spec.numel <= EXACT else min(spec.numel, int(self.table * k)))
