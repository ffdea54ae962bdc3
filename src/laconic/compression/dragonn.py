"""DRAGONN: values that pass a threshold are hashed into a table, so that nothing need be counted or compacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.dgc import DGC, EXACT, sampled
from laconic.compression.payload import pack
from laconic.compression.selector import share_of
from laconic.compression.thresholds import passing
from laconic.compression.topk import largest
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
    """DGC with a hash table: each candidate takes a hashed slot, and overwritten candidates are sent later.

    The table has `table`·k slots, and hashes are new in every step. Of candidates that collide in a slot the last in
    order stays, on every device. A tensor is compressed where a model predicts that it pays, `compress_seconds` < dense
    - sparse: an all-reduce of 4n bytes by a ring against a gather of 8k, on links of `bandwidth` and `latency`; else it
    is sent dense. Values that are not finite are sent unless they are overwritten, and then forgotten.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "elementwise"
    table: float = knob(4.0, low=1, doc="slots for each coordinate that should be sent")
    workers: int = knob(4, low=1, doc="of the model: number of workers")
    latency: float = knob(2e-5, low=0, doc="of the model: seconds before a message's first byte")
    bandwidth: float = knob(1.25e9, above=0, doc="of the model: bytes a second")
    fixed: float = knob(2e-5, low=0, doc="of the model: seconds to compress any tensor")
    each: float = knob(1e-10, low=0, doc="of the model: further seconds for each of its elements")

    def compress_seconds(self, numel: int) -> float:
        """Return the modelled time to compress a tensor."""
        return self.fixed + self.each * numel

    def dense_seconds(self, numel: int) -> float:
        """Return the modelled time of an all-reduce of the dense tensor."""
        return 2 * (self.workers - 1) * (self.latency + 4 * numel / self.workers / self.bandwidth)

    def sparse_seconds(self, numel: int) -> float:
        """Return the modelled time of a gather of the selected entries."""
        return (self.workers - 1) * (self.latency + 8 * share_of(self.ratio, numel) / self.bandwidth)

    def accepts(self, spec: TensorSpec) -> bool:
        n = spec.numel
        gain = self.dense_seconds(n) - self.sparse_seconds(n)
        return super().accepts(spec) and self.compress_seconds(n) < gain

    def candidates(self, flat: Tensor, meet: Meet) -> Tensor:
        """Return the places at or above the threshold; exactly k of them where the tensor is small enough to sort."""
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
        """Return the bytes after the warm-up: every slot of the table where candidates are not counted."""
        k = share_of(self.ratio, spec.numel)
        return 8 * (k if spec.numel <= EXACT else min(spec.numel, int(self.table * k)))
