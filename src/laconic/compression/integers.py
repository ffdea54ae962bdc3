"""IntSGD: scaled integers that any all-reduce, or a switch, can add."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_EPSILON = 1e-8


@technique(
    "intsgd",
    paper="Mishchenko, Wang, Kovalev, Richtárik, ICLR 2022",
    evidence="fixture",
    reproduces="intsgd.npz: integers, sums, scales, as `intsgd(8, rounding=nearest)`, not the default, and of 32 bits",
    formula="Q(x)_i = Int(α·x_i)/α, rounded at random, α² = n/(2N·r + ε²), r the moving average of |applied|²",
)
@dataclass(frozen=True)
class IntSGD(Compressor):
    """Gradients times a scale that every worker computes by itself, as integers that are summed by the collective.

    The scale follows a moving average of the squared norm of what was applied, equal on all workers; the first step is
    exact. Integers are cut so that the sum over all workers fits (head-room). This is the block version, with one scale
    a tensor. Values that are not finite are cut, too: the other workers do not see them.
    """

    bits: int = knob(8, choices=(8, 32), gentler="more", doc="bits of an integer on the wire")
    rounding: str = knob("stochastic", choices=("stochastic", "nearest"), doc="how values are rounded to integers")
    beta: float = knob(0.9, low=0, below=1, doc="coefficient of the moving average")

    @property
    def settling(self) -> int:
        return 1

    @property
    def decoded_with_memory(self) -> bool:
        return True

    @property
    def refuses_memory(self) -> str | None:
        return "its scale follows what is applied, and needs no memory; write intsgd"

    def init(self, spec: TensorSpec) -> State:
        return {"norm": torch.full((), -1.0)}  # before the first step

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        if meet.size >= 2 ** (self.bits - 1):
            raise StrategyError(f"{self.bits} bits have no room for the sum of {meet.size} workers: write intsgd(32)")
        before = float(state["norm"])
        if before < 0:
            own = x.clone()
            mean = yield meet.mean(x.float())
            return Outcome(mean.to(x.dtype), {"norm": _squared(mean)}, own)
        alpha = scale(before, x.numel(), meet.size)
        whole = self.rounded(alpha * x.reshape(-1).float(), meet)
        own = (whole / alpha).view(x.shape).to(x.dtype)
        total = yield meet.sum(whole.to(torch.int8 if self.bits == 8 else torch.int32))
        mean = (total.float() / (alpha * meet.size)).view(x.shape)
        norm = self.beta * state["norm"] + (1 - self.beta) * _squared(mean)
        return Outcome(mean.to(x.dtype), {"norm": norm}, own)

    def rounded(self, x: Tensor, meet: Meet) -> Tensor:
        """Return these values as whole numbers, cut so that the sum over workers fits."""
        half = 2 ** (self.bits - 1)
        if self.rounding == "nearest":
            whole = x.round()
        else:
            whole = (x + kernels.uniform(meet.key(), 0, x.numel(), x.device)).floor()
        return whole.nan_to_num(0.0).clamp(_inside(-half / meet.size), _inside((half - 1) / meet.size)).trunc()

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel * self.bits // 8


def scale(norm: float, numel: int, size: int) -> float:
    """Return the factor that gradients are multiplied by, from the squared norm of what was applied."""
    return float((numel / (2 * size * norm + _EPSILON**2)) ** 0.5)


def _inside(limit: float) -> float:
    """Return the limit as a float32 that is not beyond it, so that a sum of 32 bits fits."""
    near = np.float32(limit)
    return float(np.nextafter(near, np.float32(0)) if abs(float(near)) > abs(limit) else near)


def _squared(mean: Tensor) -> Tensor:
    return mean.double().square().sum().float()
