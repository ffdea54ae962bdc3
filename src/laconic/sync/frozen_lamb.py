"""1-bit LAMB: workers average LAMB's momentum in signs, and layers' rates follow variances that are not sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State, SyncContext
from laconic.sync.moments import SIGNS, MomentRule, Moments
from laconic.sync.tensor_lists import copies, keep
from laconic.values.cadence import Cadence
from laconic.worker import Communication


@technique("frozen_lamb", paper="Li et al. (1-bit LAMB), HiPC 2022")
@dataclass(frozen=True)
class FrozenLAMB(MomentRule):
    """`frozen_adam` for LAMB: the variances v are frozen, and each layer's rate follows what v would have become.

    A layer's rate is c·f, with c the mean of LAMB's ratios when this rule began. Momenta give the mean gradient back,
    (m − β₁·m_old)/(1 − β₁), and with it a fresh v; f is the largest quotient of the old √v + ε and the fresh one,
    weighed by the update's share without weight decay. Layers are sent scaled to one size, so that one scale serves
    all. It continues `laconic.optim.LAMB(…, bias_correction=False, ratio_bounds=(0.01, 10))` after some steps of its
    own.
    """

    continues: ClassVar[str] = "laconic.optim.LAMB"
    extra_state: ClassVar[tuple[str, ...]] = ("ratio",)
    decays_gradient: ClassVar[bool] = False
    lowest: float = knob(0.5, above=0, doc="the least f; with highest=1 and lowest=1 rates are frozen too")
    highest: float = knob(4.0, above=0, doc="the largest f")
    drift: float = knob(0.1, above=0, below=1, doc="how far f may move from its last value in a step, as a share of it")

    @property
    def cadence(self) -> Cadence:
        return Cadence(1, overlaps=False)

    @torch.no_grad()
    def stepping(self, context: SyncContext, state: State) -> Communication[State]:
        moments = self.moments(context)
        if not state:
            sizes = torch.stack([m.mean.float().square().mean().sqrt() for m in moments])
            scales = torch.where(sizes > 0, sizes.mean() / sizes, torch.ones_like(sizes))
            fresh = keep("fresh", copies(m.square for m in moments))
            state = fresh | {"scales": scales, "factors": torch.ones_like(sizes)}
        scales, factors = state["scales"], state["factors"]
        means = yield from context.average(
            [m.updated_mean(m.gradient) * k for m, k in zip(moments, scales, strict=True)]
        )
        for i, (moment, mean) in enumerate(zip(moments, means, strict=True)):
            before, ratio = moment.mean.clone(), context.optimizer.state[moment.parameter]["ratio"]
            moment.mean.copy_(moment.masked(mean / scales[i]))
            factors[i] = self._move(moment, before, state[f"fresh.{i}"], factors[i], ratio)
        return state

    def _move(self, moment: Moments, before: Tensor, fresh: Tensor, last: Tensor, ratio: Tensor) -> Tensor:
        """Step a layer with the averaged momentum, and return the factor f that was used."""
        (beta1, beta2), eps, decay = (moment.group[name] for name in ("betas", "eps", "weight_decay"))
        gradient = (moment.mean - beta1 * before) / (1 - beta1)
        fresh.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        factor: Tensor = (moment.denominator / (fresh.sqrt() + eps)).max()
        update = along = moment.mean / moment.denominator
        if decay:
            update = along + decay * moment.parameter
            length = update.norm()
            share = torch.where(length > 0, along.norm() / length, 1.0).clamp(max=1.0)
            factor = factor * share + 1 - share
        factor = factor.clamp(self.lowest, self.highest).clamp(last * (1 - self.drift), last * (1 + self.drift))
        rate = moment.rate * (ratio * factor if moment.group["adapt"] else 1.0)
        moment.parameter.sub_(rate * update)
        return factor


named_sentence(
    "one_bit_lamb",
    f"bsp until step 1000, then frozen_lamb / {SIGNS}",
    axis="compression",
    paper="Li, Awan, Tang, Rajbhandari, He, HiPC 2022",
    doc="""LAMB for a while, then momenta of one bit each behind frozen variances, with layers' rates still adapting.

    For `laconic.optim.LAMB(…, bias_correction=False, ratio_bounds=(0.01, 10))`. Write the sentence out to choose
    another length of the first stage. Reading chosen: the published program's constants; the scale of the signs is
    `one_bit_adam`'s.
    """,
    formula="m as in one_bit_adam, layers scaled to one size; layer's rate c·f, f the largest (√v + ε)/(√v_fresh + ε)",
)
