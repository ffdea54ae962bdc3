"""Thresholds: all values above a limit are sent, whatever their number; the limit is fixed, or fitted to the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, golomb
from laconic.compression.codes.places import PLACES
from laconic.compression.payload import pack
from laconic.compression.selector import PlaceSelector, share_of
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


def passing(x: Tensor, limit: float) -> Tensor:
    """Return the places of a flat tensor whose magnitude is at least the limit, or NaN, in order."""
    return kernels.passing(x, limit)[0]


def above(threshold: float) -> float:
    """Return the smallest float32 that is larger, so that what reaches it is strictly above the threshold."""
    return float(np.nextafter(np.float32(threshold), np.float32(np.inf)))


@technique(
    "hard_threshold",
    aliases=["hard_limit"],
    paper="Sahu, Dutta, Abdelmoniem, Banerjee, Canini, Kalnis, NeurIPS 2021",
    evidence="fixture",
    reproduces="hard_threshold.npz: counts, mean and memories of two workers, as `hard_threshold(limit=0.5)+ef`",
    formula="C(x)_i = x_i where |x_i| ≥ λ, else 0; one λ for all tensors and steps",
)
@dataclass(frozen=True)
class HardThreshold(PlaceSelector):
    """All magnitudes of at least one limit, the same for the whole model and run: their number adapts by itself.

    Over a run this leaves the least in the memory it needs (hard_threshold+ef) for what it sends. To spend about like
    topk with k values of the whole model in a step, the paper sets λ = 1/(2√k); the default is that of k = 2500. The
    memory never holds a magnitude of the limit or more. Values that are not finite are sent. Reading chosen: the limit
    is of gradients; `ef(inside=true)` makes it one of changes of parameters.
    """

    cost: ClassVar[str] = "elementwise"
    limit: float = knob(0.01, low=0, gentler="less", doc="lambda: the smallest magnitude that is sent, of any tensor")
    index: str = knob("packed", choices=PLACES, doc="places in log2 n bits, in 32, as a bitmap, as coded gaps")

    @property
    def place_code(self) -> str:
        return self.index

    @property
    def varies(self) -> bool:
        return True

    def count(self, numel: int) -> int:
        return numel

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        return passing(x, self.limit)

    def least(self, x: Tensor, error: Tensor | None, meet: Meet) -> float:
        return self.limit


@technique(
    "strom",
    paper="Strom, Interspeech 2015",
    formula="C(x)_i = τ·sign(x_i) where |x_i| > τ, else 0",
)
@dataclass(frozen=True)
class Strom(Codec):
    """Plus or minus one quantum, where the memory exceeds it: the rate of a weight's updates adapts, not their size.

    An update takes four bytes, a place and a sign, and there is none where no value exceeds the quantum; the rest of
    larger values waits in the memory it needs (strom+ef). `index=golomb` codes gaps, signs behind them. A tensor that
    contains a value that is not finite decodes to values that are not finite, which one entry announces. Reading
    chosen: a synchronous exchange, and Golomb's code for gaps.
    """

    ragged: ClassVar[bool] = True
    quantum: float = knob(
        0.01, above=0, doc="tau: the smallest value that is sent, and what is sent of a coordinate in a step"
    )
    index: str = knob("plain", choices=("plain", "golomb"), doc="places in 31 bits, or as coded gaps")

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        if not flat.sum().isfinite() and not flat.isfinite().all():
            return flat.new_full((4,), 0xFF, dtype=torch.uint8)
        places, values = kernels.select(flat, above(self.quantum))
        negative = values < 0
        if self.index == "plain" or not len(places):
            return (places - (negative.long() << 31)).to(torch.int32).view(torch.uint8)
        count = torch.tensor([len(places)], dtype=torch.int32, device=x.device)
        return pack(count, golomb.write(places, flat.numel()), bits.pack(negative, 1))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        words = payload[: payload.numel() // 4 * 4].clone().view(torch.int32).long()
        decoded = torch.zeros(shape.numel(), device=payload.device)
        if len(words) and int(words[0]) == -1:
            return torch.full(shape, torch.nan, device=payload.device)
        places, negative = words & 0x7FFFFFFF, words < 0
        if self.index == "golomb" and len(words):
            count, rest = int(words[0]), payload[4:]
            places, head = golomb.read(rest, count, shape.numel())
            negative = bits.unpack(rest[head:], 1, count).bool()
        decoded[places] = torch.where(negative, -self.quantum, self.quantum)
        return decoded.view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        if self.index == "plain":
            return 4 * spec.numel
        return 4 + bits.length(2 * spec.numel, 1) + 1 + bits.length(spec.numel, 1)


# ---------------------------------------------------------------------------------------------- fitted

_FIRST = 0.25  # share that the first of several stages lets pass
_WINDOW, _FEW, _MANY = (
    5,
    0.8,
    1.2,
)  # steps between changes of the number of stages; shares of the target between which there is none
_MOST = 8  # the largest number of values sent, in multiples of k


def exponential(size: Tensor, share: float) -> float:
    """Return the limit that such a share of exponentially distributed magnitudes exceeds."""
    return float(size.mean()) * math.log(1 / share)


def pareto(size: Tensor, share: float) -> float:
    """Return the limit that such a share exceeds under a generalised Pareto distribution, fitted by its first two
    moments."""
    variance, mean = (float(part) for part in torch.var_mean(size)) if size.numel() > 1 else (0.0, float(size.mean()))
    if not variance > 0:
        return exponential(size, share)
    squared = mean**2 / variance
    shape, scale = 0.5 * (squared - 1), 0.5 * mean * (squared + 1)
    return scale * math.log(1 / share) if abs(shape) < 1e-9 else scale * -math.expm1(shape * math.log(share)) / shape


def fitted_gamma(size: Tensor) -> tuple[float, float] | None:
    """Return shape and scale of a gamma distribution with the means of magnitudes and of their logarithms; None where
    all magnitudes are equal."""
    mean = float(size.mean())
    s = math.log(mean) - float((size + torch.finfo(torch.float64).eps).log().mean()) if mean > 0 else 0.0
    if not s > 0:
        return None
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return shape, mean / shape


def gamma(size: Tensor, share: float) -> float:
    """Return the limit that such a share exceeds under a gamma distribution, exactly."""
    fit = fitted_gamma(size)
    if fit is None:
        return exponential(size, share)
    from scipy.special import gammaincinv  # here, since few sentences need it

    shape, scale = fit
    return scale * float(gammaincinv(shape, 1 - share))


def gamma_tail(size: Tensor, share: float) -> float:
    """Return the same limit by the paper's closed form, -scale·(ln share + ln Γ(shape)).

    It leaves a factor out of the tail that is one where the shape is: too high a limit below that shape, too low above.
    """
    fit = fitted_gamma(size)
    if fit is None:
        return exponential(size, share)
    shape, scale = fit
    return -scale * (math.log(share) + math.lgamma(shape))


FITS = {
    "exponential": (exponential, exponential),
    "gamma": (gamma, pareto),
    "gamma_tail": (gamma_tail, pareto),
    "pareto": (pareto, pareto),
}


def fitted(size: Tensor, ratio: float, fit: str, stages: int) -> float:
    """Return the limit that a share `ratio` of the magnitudes exceeds.

    Each stage after the first fits the values that the one before let pass, less the smallest of them.
    """
    first, later = FITS[fit]
    if stages == 1 or ratio >= _FIRST:
        return first(size, ratio)
    limit, share = first(size, _FIRST), (ratio / _FIRST) ** (1 / (stages - 1))
    for _ in range(stages - 1):
        kept = size[size > limit]
        if not kept.numel():
            return limit
        size, least = kept, float(kept.min())
        limit = least + later(kept - least, share)
    return limit


def adapted(state: Sequence[float], achieved: float, ratio: float, adapt: str) -> list[float]:
    """Return the controller's state after another step in which the share `achieved` was sent.

    The state is the number of stages, the direction in which it changes, the last window's mean, and the present
    window's sum and count.
    """
    stages, towards, last, total, count = state
    total, count = total + achieved / ratio, count + 1
    if count < _WINDOW:
        return [stages, towards, last, total, count]
    mean = total / count
    if adapt == "reversing" and last > 0 and abs(mean - 1) > abs(last - 1):
        towards = -towards
    stages += towards * ((mean < _FEW) - (mean > _MANY))
    most = max(1, math.ceil(math.log2(1 / ratio)))
    return [min(max(stages, 1), most), towards, mean, 0.0, 0.0]


@technique(
    "sidco",
    paper="Abdelmoniem, Elzanaty, Alouini, Canini, MLSys 2021",
    evidence="fixture",
    reproduces=(
        "sidco.npz: thresholds, counts and stages of four fits, as `sidco`, `sidco(fit=pareto)`, `sidco(fit=gamma)` "
        "and `sidco(fit=gamma_tail)`"
    ),
    formula="C(x)_i = x_i where |x_i| > t, else 0; t fitted to |x| in stages, so that about k pass",
    worth_trying=["sidco+ef"],
)
@dataclass(frozen=True)
class SIDCo(Compressor):
    """All magnitudes above a limit fitted to their distribution, in stages, so that about k pass without any sort.

    A later stage fits the tail alone. Every five steps the number of stages follows what passed: fewer where it was too
    much, more where it was too little, and the other way round (`reversing`) when the last change made it worse. Needs
    a memory: sidco+ef. Reading chosen: fits and changes of the published program, of which the plain direction stays at
    one stage on heavy tails. Of more than 8k the largest are sent; values that are not finite are sent, with exact
    selection. Of ten million values one stage selects a thousandth in a fifth of the time of `topk`, 2.7 times as fast
    as torch's; two or three stages take half of it, 1.2 times as fast as torch's (bench/sidco_selection.py, one core).
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "reduce"
    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that should be sent, at least one"
    )
    fit: str = knob(
        "exponential",
        choices=tuple(FITS),
        doc="distribution fitted to magnitudes; after a gamma fit, exact or of the tail alone, later stages are Pareto",
    )
    stages: int = knob(1, low=1, doc="number of stages at the start")
    adapt: str = knob(
        "reversing", choices=("reversing", "plain", "never"), doc="how the number of stages follows what passed"
    )
    index: str = knob("plain", choices=PLACES, doc="places in log2 n bits, in 32, as a bitmap, as coded gaps")

    @property
    def meets(self) -> Meets:
        return "gather"

    def init(self, spec: TensorSpec) -> State:
        return {"stages": torch.tensor([float(self.stages), 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)}

    def most(self, numel: int) -> int:
        return min(numel, _MOST * share_of(self.ratio, numel))

    def choose(self, flat: Tensor, stages: int) -> Tensor:
        """Return the selected places in ascending order."""
        k, size = share_of(self.ratio, flat.numel()), flat.abs()
        limit = fitted(size, k / flat.numel(), self.fit, stages)
        if not math.isfinite(limit):
            return largest(flat, k)
        places, most = passing(flat, above(limit)), self.most(flat.numel())
        return places if len(places) <= most else places[largest(flat[places], most)]

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, controller = x.reshape(-1).float(), state["stages"].tolist()
        places, writer = self.choose(flat, int(controller[0])), HardThreshold(index=self.index)
        count = torch.tensor([len(places)], dtype=torch.int32, device=x.device)
        payload = pack(count, writer.write_places(places, flat.numel()), flat[places])
        mean = yield from writer.average(payload, flat, meet)
        sent = torch.zeros_like(flat)
        sent[places] = flat[places]
        if self.adapt != "never":
            share = share_of(self.ratio, flat.numel()) / flat.numel()
            controller = adapted(controller, len(places) / flat.numel(), share, self.adapt)
        state = {"stages": torch.tensor(controller, dtype=torch.float64)}
        return Outcome(mean.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        k = self.most(spec.numel)
        return 4 + HardThreshold(index=self.index).places_bytes(k, spec.numel) + 4 * k
