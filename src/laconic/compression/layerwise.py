"""Different ratios for different layers under one budget of bytes, so that the messages hold the most energy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Contraction
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets

_PAPER = "Shi et al., IEEE Network 2020 (a direction of their survey)"
WIDTHS = (0, *range(2, 9))
"""The numbers of bits that a value may have: none, or a sign and levels."""

named_sentence(
    "layerwise_ratio",
    "bsp / flat+topk(0.01, index=plain)+ef / allreduce / sequential",
    axis="compression",
    paper=_PAPER,
    doc="""One threshold over all layers, which keeps the most energy of the gradient where every entry costs the same.

    No other division of the budget among layers holds more. Reading chosen: places are plain, so that an entry costs
    eight bytes in every layer and the promise is exact. For quantisers there is `layerwise_bits`, for densities that
    hide behind computing `hidden_density`.
    """,
    formula="C(x)_i = x_i where |x_i| is among the k largest of the whole model, else 0",
)


@technique(
    "layerwise_bits",
    paper=_PAPER,
    claims=[Contraction()],
    formula="C(x) = (Q_b1(x_1), …, Q_bL(x_L)): each next bit where the error falls most per byte, until R is spent",
)
@dataclass(frozen=True)
class LayerwiseBits(Compressor):
    """Rounding with a different number of bits in each layer, 0 or 2 to 8, under a common budget of bytes.

    The budget is what `bits` in all layers would take. Write flat+layerwise_bits+ef: `flat` joins the layers, whose
    lengths are known here; without it a tensor is one layer, with nothing to divide. Each worker divides the budget by
    its own gradient, and sends the result in a byte for each layer. A layer with no bits is left to the memory. Reading
    chosen: to the nearest share of a bucket's largest magnitude, so that the error of every width is known, and none is
    above that of sending nothing. Values that are not finite are sent first, and spoil their bucket.
    """

    ragged: ClassVar[bool] = True
    bits: int = knob(
        4, low=2, high=8, gentler="more", doc="the budget: the bytes that so many bits in all layers would take"
    )
    bucket: int = knob(512, low=1, doc="elements that share a scale")

    @property
    def meets(self) -> Meets:
        return "gather"

    def init(self, spec: TensorSpec) -> State:
        return {"lengths": torch.tensor(spec.parts or (spec.numel,))}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        lengths = state["lengths"].tolist()
        payload = self.write(x.reshape(-1).float().split(lengths))
        rows = yield meet.gather_ragged(payload)
        mean = torch.zeros(x.numel(), device=x.device)
        for row in rows:
            self.add(mean.split(lengths), row)
        sent = torch.zeros_like(mean)
        self.add(sent.split(lengths), payload)
        mean /= len(rows)
        return Outcome(mean.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def write(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the payload: the number of bits of each layer, and the codes and scales of those that have some."""
        widths = self.divide(layers)
        parts = [torch.tensor(widths, dtype=torch.uint8, device=layers[0].device)]
        for layer, width in zip(layers, widths, strict=True):
            if width:
                scales, steps = kernels.bucket_scales(layer, self.bucket, "max"), _steps(width)
                codes = (self._shares(layer, scales) * steps).round().nan_to_num(nan=0.0) + steps
                parts += [bits.pack(codes.to(torch.uint8), width), scales]
        return pack(*parts)

    def add(self, totals: Sequence[Tensor], payload: Tensor) -> None:
        """Decode a payload and add it to the layers of a sum."""
        head, rest = payload.tensor_split([len(totals)])
        for total, width in zip(totals, head.tolist(), strict=True):
            if width:
                n = total.numel()
                mine, rest = rest.tensor_split([self._bytes(n, width)])
                packed, scales = unpack(
                    mine, (torch.uint8, bits.length(n, width)), (torch.float32, -(-n // self.bucket))
                )
                levels = (bits.unpack(packed, width, n).float() - _steps(width)) / _steps(width)
                total += levels * scales.repeat_interleave(self.bucket)[:n]

    def divide(self, layers: Sequence[Tensor]) -> list[int]:
        """Return the bits of each layer; the same for all where that loses less, since the greedy steps may not use up
        the budget."""
        curves = [
            [(self._bytes(layer.numel(), width), lost) for width, lost in zip(WIDTHS, self.errors(layer), strict=True)]
            for layer in layers
        ]
        alike = [WIDTHS.index(self.bits)] * len(layers)
        chosen = spend(curves, sum(curve[to][0] for curve, to in zip(curves, alike, strict=True)))
        return [WIDTHS[to] for to in min(chosen, alike, key=lambda choice: error_of(curves, choice))]

    def errors(self, layer: Tensor) -> list[float]:
        """Return the energy that is lost at each width."""
        energy = float(layer.double().square().sum())
        if not math.isfinite(energy):
            return [math.inf, *[0.0] * (len(WIDTHS) - 1)]
        scales = kernels.bucket_scales(layer, self.bucket, "max")
        shares, weights = self._shares(layer, scales), scales.repeat_interleave(self.bucket)[: layer.numel()]
        found = [energy]
        for steps in map(_steps, WIDTHS[1:]):
            levels = shares * steps
            found.append(float(((levels - levels.round()) * weights / steps).double().square().sum()))
        return found

    def _shares(self, layer: Tensor, scales: Tensor) -> Tensor:
        each = scales.repeat_interleave(self.bucket)[: layer.numel()]
        return torch.where(each == 0, 0.0, layer / each)

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ: the largest value of a bucket is exact, wherever equal bits for all layers would send it."""
        return 1 / min(self.bucket, spec.numel)

    def _bytes(self, numel: int, width: int) -> int:
        return bits.length(numel, width) + 4 * -(-numel // self.bucket) if width else 0

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        parts = spec.parts or (spec.numel,)
        return len(parts) + sum(self._bytes(n, self.bits) for n in parts)


def _steps(width: int) -> int:
    """Return the number of levels on each side of zero."""
    return int(2 ** (width - 1)) - 1


Curve = Sequence[tuple[int, float]]
"""The points of a layer's trade-off: its cost in bytes, ascending, and the energy that is lost."""


def error_of(curves: Sequence[Curve], chosen: Sequence[int]) -> float:
    """Return the energy that all layers lose together."""
    return math.fsum(curve[to][1] for curve, to in zip(curves, chosen, strict=True))


def spend(curves: Sequence[Curve], budget: float) -> list[int]:
    """Return the chosen point of each layer's curve under a budget, beginning with the first of each, which is given.

    Again and again one layer makes the affordable step by which the error falls most per byte.
    """
    chosen = [0] * len(curves)
    left = budget - sum(curve[0][0] for curve in curves)
    waiting: list[tuple[float, int, int]] = []  # among equal steps, the one of the layer that has made fewest

    def offer(layer: int) -> None:
        """Queue the layer's best affordable step from its present point."""
        now = chosen[layer]
        (nbytes, error), further = curves[layer][now], enumerate(curves[layer])
        steps = [(_gain(error - e, b - nbytes), to) for to, (b, e) in further if to > now and b - nbytes <= left]
        if steps and (best := max(steps, key=lambda step: (step[0], -step[1])))[0] > 0:
            heapq.heappush(waiting, (-best[0], best[1], layer))

    for layer in range(len(curves)):
        offer(layer)
    while waiting:
        _, to, layer = heapq.heappop(waiting)
        cost = curves[layer][to][0] - curves[layer][chosen[layer]][0]
        if cost <= left:  # else it is too expensive by now, and another step may not be
            chosen[layer], left = to, left - cost
        offer(layer)
    return chosen


def _gain(falls: float, nbytes: int) -> float:
    return falls / nbytes if nbytes > 0 else math.copysign(math.inf, falls)


def hidden_density(
    hide_seconds: float,
    elements: int,
    workers: int,
    startup_seconds: float,
    seconds_per_element: float,
    least: float = 0.001,
) -> float:
    """Return the largest share of a layer that an all-gather of places and values carries within `hide_seconds`.

    That is the computation it can hide behind: what is left after log2 N start-ups, over the time of 2(N-1) times the
    layer, and at least `least`.
    """
    if workers == 1:
        return 1.0
    whole = 2 * (workers - 1) * seconds_per_element * elements
    left = hide_seconds - math.log2(workers) * startup_seconds
    return min(1.0, max(least, left / whole if whole > 0 else math.copysign(math.inf, left)))
