"""A fixed basis: coordinates of the gradient in directions that all workers found together at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, Meet, Reduce


@technique(
    "pca_awfl",
    aliases=["pca"],
    paper="Dong et al., IEEE TWC 2023",
    formula="C(x) = V·V'·x, V the leading directions of all workers' first gradients",
)
@dataclass(frozen=True)
class PCA(Compressor):
    """The gradient's coordinates in the leading directions of the first gradients: `rank` numbers a step.

    For `samples` steps gradients are averaged in full and kept. Then each worker sends the leading directions of its
    own, once, and all take the leading eigenvectors of the mean of the projectors on them. The compressor is a linear
    map that never changes: what lies outside of the basis is lost. The accelerated form is the user's own
    `SGD(nesterov=True)`. Reading chosen: the directions are of the workers' first gradients, bases merge by their
    projectors and are never found again, and channels have no noise.
    """

    cost: ClassVar[str] = "matmul"
    rank: int = knob(4, low=1, gentler="more", doc="number of directions")
    samples: int = knob(8, low=1, doc="steps whose gradients the directions are found from")

    @property
    def asks(self) -> tuple[type, ...]:
        return (Reduce, Gather)

    @property
    def settling(self) -> int:
        return self.samples + 1

    def accepts(self, spec: TensorSpec) -> bool:
        return super().accepts(spec) and spec.numel > self.rank

    def init(self, spec: TensorSpec) -> State:
        return {"seen": torch.zeros(0, spec.numel), "basis": torch.zeros(spec.numel, 0)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, basis = x.reshape(-1).float(), state["basis"]
        if not basis.numel() and len(state["seen"]) < self.samples:
            mean = yield meet.mean(flat.clone())
            state = {**state, "seen": torch.cat([state["seen"], flat.unsqueeze(0)])}
            return Outcome(mean.view(x.shape).to(x.dtype), state, x.clone())
        if not basis.numel():
            bases = yield meet.gather(leading(state["seen"].T, self.rank))
            basis = leading(torch.cat([*bases], dim=1), self.rank)
            state = {"seen": state["seen"][:0], "basis": basis}
        own = basis.T @ flat
        mean = yield meet.mean(own.clone())
        result, sent = (part.view(x.shape).to(x.dtype) for part in (basis @ mean, basis @ own))
        return Outcome(result, state, sent)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a step after the first ones."""
        return 4 * self.rank


def leading(columns: Tensor, rank: int) -> Tensor:
    """Return the leading left singular vectors of these columns, with zero columns where there are fewer than
    `rank`."""
    clean = columns.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    u, sizes, _ = torch.linalg.svd(clean, full_matrices=False)
    found = u[:, :rank] * (sizes[:rank] > 1e-6 * sizes[0])
    return torch.nn.functional.pad(found, (0, rank - found.shape[1]))
