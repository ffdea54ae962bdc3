"""RedSync: accumulated gradients are selected by searches that only count, chosen by the size of the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import State
from laconic.compression.dgc import DGC
from laconic.compression.payload import pack
from laconic.compression.selector import share_of
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_TRIMS = (0.8, 0.6, 0.4, 0.2, 0.0)  # thresholds to try, as shares of the way from the mean to the largest
_NARROW = 1e-7  # width of the interval of such shares at which bisection stops


def trimmed(size: Tensor, k: int) -> Tensor:
    """Return the places of the k largest, searched only among values above a threshold that is lowered until k pass."""
    mean, most = float(size.mean()), float(size.max())
    for share in _TRIMS:
        places, values = kernels.select(size, mean + share * (most - mean))
        if len(places) >= k:
            return places[largest(values, k)]
    return largest(size, k)


def bisected(size: Tensor, k: int) -> tuple[float, bool]:
    """Return a threshold between the mean and the largest value, and whether k to 2k values pass it."""
    mean, most = float(size.mean()), float(size.max())
    low, high, limit = 0.0, 1.0, mean
    while high - low > _NARROW:
        middle = (low + high) / 2
        limit = mean + middle * (most - mean)
        count = int((size >= limit).sum())
        if k <= count <= 2 * k:
            return limit, True
        low, high = (low, middle) if count < k else (middle, high)
    return limit, False


@technique(
    "redsync",
    paper="Fang, Fu, Yang, Hsieh, JPDC 133, 2019",
    formula="as dgc, k to 2k values above a bisected threshold; quantized: all of one sign, as their mean",
)
@dataclass(frozen=True)
class RedSync(DGC):
    """DGC with a search by size: small tensors dense, medium ones trimmed, large ones by a bisected threshold.

    Medium tensors are trimmed before the largest are searched for; in large ones bisection finds a threshold that k to
    2k values pass, which is kept for `reuse` steps. `quantized`: only positive values in even steps, only negative ones
    in odd steps, so that one number, their mean, is sent for all; what it misses stays in the sum. The output layer is
    better left out: {"head*": redsync, else: redsync(quantized=true)}. Dense warm-up: `bsp until step 100, then
    redsync`. Values that are not finite are sent, and then forgotten. Reading chosen: cuts of 128 KiB and 4 MiB,
    thresholds kept for five steps while k to 2k pass, a trimming that goes down by fifths from 0.8; where no threshold
    is found, the k largest.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "reduce"
    quantized: bool = knob(
        False,
        doc="whether the values of a message are sent as their mean, positive and negative in alternate steps",
    )
    small: int = knob(128 * 2**10, low=0, doc="bytes below which a tensor is sent dense")
    large: int = knob(4 * 2**20, low=0, doc="bytes from which on a threshold is found by bisection")
    reuse: int = knob(5, low=1, doc="steps for which a threshold is kept")

    def accepts(self, spec: TensorSpec) -> bool:
        return super().accepts(spec) and spec.nbytes >= self.small

    def init(self, spec: TensorSpec) -> State:
        return {**super().init(spec), "threshold": torch.zeros(2, dtype=torch.float64)}

    def to_send(self, flat: Tensor, state: State, meet: Meet) -> tuple[Tensor, Tensor]:
        turn = meet.step % 2 if self.quantized else 0
        size = (1 - 2 * turn) * flat.clone() if self.quantized else flat.abs()
        size = torch.where(flat.isfinite(), size.clamp_(min=0), torch.inf)
        places = self.search(size, state["threshold"], turn, meet)
        if not self.quantized:
            return places, flat[places]
        places = places[size[places] > 0]
        return places, flat[places].mean().repeat(len(places))

    def search(self, size: Tensor, kept: Tensor, turn: int, meet: Meet) -> Tensor:
        """Return the places of about the k largest; positive and negative steps each keep a threshold in `kept`."""
        k = share_of(self.share(meet.step), size.numel())
        if 4 * size.numel() < self.large:
            return trimmed(size, k)
        if (meet.step // (1 + self.quantized)) % self.reuse:
            places, _ = kernels.select(size, float(kept[turn]))
            if k <= len(places) <= 2 * k:
                return places
        limit, found = bisected(size, k)
        kept[turn] = limit if found else 0.0
        return kernels.select(size, limit)[0] if found else largest(size, k)

    def write(self, places: Tensor, values: Tensor) -> Tensor:
        count = torch.tensor([len(places)], dtype=torch.int32, device=places.device)
        if self.quantized:
            values = values[:1] if len(places) else torch.zeros(1, device=places.device)
        return pack(count, places.to(torch.int32), values)

    def read(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        words = payload.clone().view(torch.int32)
        count = int(words[0])
        values = words[1 + count :].view(torch.float32)
        return words[1 : 1 + count].long(), values.expand(count) if self.quantized else values

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        k = share_of(self.ratio, spec.numel)
        most = min(spec.numel, 2 * k) if 4 * spec.numel >= self.large else k
        return 8 + 4 * most if self.quantized else 4 + 8 * most
