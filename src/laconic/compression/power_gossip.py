"""PowerGossip: the difference between two neighbours' parameters, in low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.low_rank import first_draw, orthogonal, sides
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Edge, Meet, Meets


@technique(
    "power_gossip",
    paper="Vogels, Karimireddy, Jaggi, NeurIPS 2020",
    evidence="fixture",
    reproduces="power_gossip.npz: a chain of three, call by call, as `power_gossip(1)` and `power_gossip(2)`",
    formula="p = (X_j - X_i)·q with q orthonormal, next step q = (X_j - X_i)'·p; X_i ← X_i + w·p·q'",
)
@dataclass(frozen=True)
class PowerGossip(Compressor):
    """A low-rank approximation of the difference between two neighbours, by alternating power iteration.

    Neighbours send products of their own matrices with a common factor, whose difference is the product of the
    difference. For each edge and matrix both ends hold the same factors p and q. Alternately, q is made orthonormal and
    p becomes (X_hi - X_lo)·q, or p is and q becomes (X_hi - X_lo)'·p: half a power iteration on the difference a step,
    which p·q' approximates, and no memory, since what is not sent stays in the models. Vectors are sent as they are;
    the first step, before which all models are equal, sends nothing. Reading chosen: the published program's order of
    the factors.
    """

    cost: ClassVar[str] = "matmul"
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"architecture": ("gossip",)}
    rank: int = knob(1, low=1, gentler="more", doc="columns of the factors")

    @property
    def meets(self) -> Meets:
        return "edge"

    @property
    def refuses_memory(self) -> str | None:
        return "the models themselves keep what was not sent; write power_gossip"

    def accepts(self, spec: TensorSpec) -> bool:
        return len(spec.shape) > 1 and spec.dtype.is_floating_point and spec.numel > 0

    def init(self, spec: TensorSpec) -> State:
        rows, columns = sides(spec.shape)
        draw = first_draw(spec)
        r = min(self.rank, rows, columns)
        p, q = (torch.randn(side, r, generator=draw).to(spec.dtype) for side in (rows, columns))
        return {"p": p, "q": q, "turn": torch.zeros((), dtype=torch.int64)}

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        turn = int(state["turn"])
        factors = {"p": state["p"], "q": state["q"]}
        difference = torch.zeros_like(x)
        if turn:
            matrix = x.reshape(len(x), -1)
            still, moving, times = ("q", "p", kernels.left_products) if turn % 2 else ("p", "q", kernels.right_products)
            factors[still] = orthogonal(factors[still])
            (own,) = times([matrix], [factors[still]])
            other = yield meet.swap(own.clone())
            factors[moving] = other - own if meet.rank < meet.other else own - other
            product = (factors["p"] @ factors["q"].T).view(x.shape)
            difference = product if meet.rank < meet.other else -product
        return Outcome(difference, {**factors, "turn": state["turn"] + 1})

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError("power_gossip exchanges with one neighbour at a time: write dpsgd / power_gossip / gossip")

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes for one neighbour in a step, in the mean over two steps."""
        rows, columns = sides(spec.shape)
        return spec.dtype.itemsize * min(self.rank, rows, columns) * (rows + columns) // 2
