"""AC-SGD: a budget of bits that is spent in the steps and coordinates where it reduces the variance most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.adaptive import Adaptive, Choice
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.chunks import Masked
from laconic.compression.selector import Selected
from laconic.compression.stochastic_levels import QSGD
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, Meet, Meets, Reduce

_LEAST_BITS, _MOST_BITS = 2, 8
_FIXED = 64  # bits of every step: the norm that is agreed on, and the scale of the values
_FOLLOWS = 0.1  # how far the norm expected of later steps goes towards the present one


@technique(
    "ac_sgd",
    paper="Yan et al., IEEE JSAC 2022",
    formula="C(x) = (n/k)·Q_b(x on k random places that all share); k and b spend a budget by weight·|x|²",
)
@dataclass(frozen=True)
class ACSGD(Adaptive):
    """Random coordinates in a few bits, both unbiased; how many of each follows the gradient's norm and a budget.

    A step's part of the remaining budget is in proportion to the root of weight times squared norm, where later steps
    weigh more; between more coordinates and more bits the smaller variance decides. Workers agree on the mean norm, so
    that all choose alike. Reading chosen: all workers draw the same places, which are not sent; later norms are
    expected to be like the last ones; the budget is for every `horizon` steps. Where a gradient is not finite, the
    decoded values are not finite.
    """

    ragged: ClassVar[bool] = True
    bits: float = knob(1.0, above=0, high=8, gentler="more", doc="the budget: mean bits for each coordinate and step")
    horizon: int = knob(1000, low=1, doc="steps that share a budget")
    discount: float = knob(0.995, above=0, high=1, doc="weight of a step divided by that of the next one")

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def asks(self) -> tuple[type, ...]:
        return (Reduce, Gather)

    @property
    def decoded_with_memory(self) -> bool:
        return True

    @property
    def refuses_memory(self) -> str | None:
        return "values scaled by n/k diverge with a memory; write ac_sgd"

    def init(self, spec: TensorSpec) -> State:
        return {
            "made": torch.zeros((), dtype=torch.int64),
            "spent": torch.zeros((), dtype=torch.float64),
            "norm": torch.zeros(()),
        }

    def choose(self, x: Tensor, state: State, meet: Meet) -> Choice:
        norm = yield meet.mean(x.float().norm().view(1))
        now, made = float(norm), int(state["made"]) % self.horizon
        spent = float(state["spent"]) if made else 0.0
        seen = now if not made else float(state["norm"]) + _FOLLOWS * (now - float(state["norm"]))
        k, b = best(x.numel(), self.allowance(x.numel(), made, spent, now, seen))
        bits = _FIXED + 8 * math.ceil(k * b / 8)
        found = {
            "made": state["made"] + 1,
            "spent": torch.tensor(spent + bits, dtype=torch.float64),
            "norm": torch.tensor(seen),
        }
        return _Scaled(k, b), found

    def allowance(self, n: int, made: int, spent: float, now: float, seen: float) -> float:
        """Return the bits that this step may spend."""
        root, steps = math.sqrt(self.discount), self.horizon - made
        mine = root ** (steps - 1) * now
        later = seen * ((1 - root ** (steps - 1)) / (1 - root) if root < 1 else steps - 1)
        left, least = self.bits * n * self.horizon - spent, _FIXED + 8.0
        share = mine / (mine + later) if math.isfinite(now) and mine + later > 0 else 1 / steps
        enough = left - (steps - 1) * self._most(n)  # what later steps could not take
        return min(max(share * left, least, enough), left - (steps - 1) * least, self._most(n))

    def _most(self, n: int) -> float:
        return _FIXED + _MOST_BITS * n

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the largest number of bytes of one step; their mean is the budget."""
        return max(_FIXED // 8 + 1, math.ceil(self._most(spec.numel) / 8))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return ("reduce", 4), ("gather", self.payload_bytes(spec, size) - 4)


def best(n: int, bits: float) -> tuple[int, int]:
    """Return the number of coordinates, and the bits of each, that fit into `bits` with the least variance."""
    pairs = [(min(n, max(1, int((bits - _FIXED) // b))), b) for b in range(_LEAST_BITS, _MOST_BITS + 1)]
    return min(pairs, key=lambda pair: variance(n, *pair))


def variance(n: int, k: int, b: int) -> float:
    """Return ω of k random coordinates of n, scaled by n/k, on 2^(b-1) - 1 levels of their norm."""
    levels: int = 2 ** (b - 1) - 1
    return n / k * (1 + min(k / levels**2, math.sqrt(k) / levels)) - 1


@dataclass(frozen=True)
class _Scaled(Compressor):
    """A compressor that sends k coordinates, the same on all workers, in b bits each, multiplied by n/k."""

    k: int
    b: int

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        drawn, codec = Masked(ratio=self.k / x.numel()), QSGD(levels=2 ** (self.b - 1) - 1, bucket=self.k)
        outcome = yield from Selected(drawn, codec).exchange(x, state, meet)
        assert outcome.sent is not None
        times = x.numel() / self.k
        return Outcome(outcome.result * times, state, outcome.sent * times)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return math.ceil(self.k * self.b / 8) + 4
