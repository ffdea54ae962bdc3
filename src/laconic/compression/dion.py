"""Dion: an orthonormal update of low rank, from momenta that stay local to the workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.low_rank import first_draw, orthogonal, sides
from laconic.compression.selector import share_of
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets

_LEAST = 1e-8  # added to the norms of columns


@technique(
    "dion",
    paper="Ahn, Xu, Abreu, Langford, arXiv 2504.05295, 2025",
    formula="B = M + G, P = orth(mean B·Q), R = mean B'·P, M ← B - (1-µ)P·R', Q ← R/|columns|, result √(m/q)·P·Q'",
)
@dataclass(frozen=True)
class Dion(Compressor):
    """One step of power iteration on the mean of local momenta; all directions of the update have equal length.

    B = M + G at each worker; P is the orthonormal mean of B·Q, R the mean of B'·P, M = B - (1-μ)·P·R', and Q becomes R
    with columns of length one. The result is √(m/q)·P·Q', for torch.optim.SGD, whose own momentum is applied here
    instead (and whose weight decay is the paper's). Momenta are never sent. Vectors are sent dense, and have no other
    rule here. Reading chosen: √(m/q), not √max(1, m/q). Momenta are kept as shares of their mean, so that another
    number of workers keeps it. A gradient that is not finite makes a result that is not finite, and is then forgotten.
    """

    cost: ClassVar[str] = "matmul"
    takes: ClassVar[tuple[str, ...]] = ("momentum",)
    rank: float = knob(
        0.25, above=0, high=1, gentler="more", doc="columns of the factors, as a share of the shorter side"
    )
    mu: float = knob(0.95, low=0, below=1, doc="share of what was sent that is kept in the momentum")

    @property
    def conserved(self) -> tuple[str, ...]:
        return ("momentum",)

    @property
    def refuses_memory(self) -> str | None:
        return "its momentum keeps what was not sent; write dion"

    def accepts(self, spec: TensorSpec) -> bool:
        return len(spec.shape) > 1 and spec.dtype.is_floating_point and spec.numel > 0

    def columns(self, shape: tuple[int, ...]) -> int:
        """Return the number of columns of the factors for a tensor of this shape."""
        return share_of(self.rank, min(sides(shape)))

    def init(self, spec: TensorSpec) -> State:
        first = torch.randn(sides(spec.shape)[1], self.columns(spec.shape), generator=first_draw(spec))
        return {"momentum": torch.zeros(spec.shape), "q": orthogonal(first).to(torch.empty(0).device)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        momentum, q = state["momentum"], state["q"]
        own = momentum.view(len(x), -1) + x.reshape(len(x), -1).float() / meet.size
        p = orthogonal((yield meet.sum(own @ q)))
        r = yield meet.sum(own.T @ p)
        norms = r.norm(dim=0)
        known = torch.isfinite(norms).all()  # the same on all workers
        left = own - (1 - self.mu) / meet.size * (p @ r.T)
        kept = {
            "momentum": torch.where(known, left, momentum.view_as(left)).view(x.shape),
            "q": torch.where(known & (norms > 0), r / (norms + _LEAST), q),
        }
        rows, columns = sides(tuple(x.shape))
        step = math.sqrt(rows / columns) * (p @ (r / (norms + _LEAST)).T)
        return Outcome(step.view(x.shape).to(x.dtype), kept)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * self.columns(spec.shape) * sum(sides(spec.shape))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the two factors, the second of which is made of the first one's sum."""
        rows, columns = sides(spec.shape)
        return ("reduce", 4 * self.columns(spec.shape) * rows), ("reduce", 4 * self.columns(spec.shape) * columns)
