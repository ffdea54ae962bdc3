"""Signum: the signs of local momenta, combined by majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.signs import SignSGD
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "signum",
    paper="Bernstein et al., ICML 2018",
    formula="m ← βm + (1-β)g, result sign(Σ over workers of sign(m))",
)
@dataclass(frozen=True)
class Signum(SignSGD):
    """signSGD with momentum: each worker votes with the sign of the moving average of its own gradients.

    The optimizer's momentum is applied here instead, so that it acts before the sign and not behind it; the vote is
    `sign_sgd`'s, which this is, to the bit, with beta=0. Weight decay stays with the optimizer, which adds it to the
    vote, and its bytes are those of `sign_sgd`. NaN votes against once, and is then forgotten.
    """

    takes: ClassVar[tuple[str, ...]] = ("momentum",)
    beta: float | None = knob(
        None,
        low=0,
        below=1,
        doc="coefficient of the moving average; none: the optimizer's momentum, 0.9 where it has none",
    )

    @property
    def conserved(self) -> tuple[str, ...]:
        return ("momentum",)

    def init(self, spec: TensorSpec) -> State:
        return {"momentum": torch.zeros(spec.shape)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        beta = self.beta if self.beta is not None else meet.settings.get("momentum") or 0.9
        momentum = state["momentum"].mul_(beta).add_(x.float(), alpha=1 - beta)
        voted = yield from super().exchange(momentum.to(x.dtype), {}, meet)
        return Outcome(voted.result, {"momentum": momentum.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)}, voted.sent)
