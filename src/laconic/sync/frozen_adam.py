"""1-bit Adam's second stage: Adam's momentum is agreed upon, and its preconditioner stands still."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from laconic.errors import ContractError
from laconic.registry import named_sentence, technique
from laconic.sync.base import Section, State, Sync


@technique("frozen_adam", paper="Tang et al. (1-bit Adam), ICML 2021")
@dataclass(frozen=True)
class FrozenAdam(Sync):
    """Momentum SGD behind the variances that Adam had when this rule began: workers average momenta, not gradients.

    Each takes its gradient into the common momentum, the mean of these (compressed as the sentence says) becomes the
    next common one, and the step is lr·m/(√v + ε) with v as it was, without bias correction. For torch's Adam and AdamW
    after some steps of their own: `bsp until step 1000, then frozen_adam / …`, the paper's 15 to 20 % of all.
    """

    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True

    @torch.no_grad()
    def stepping(self, section: Section, state: State) -> Generator[Any, Any, State]:
        moments = [section.optimizer.state.get(p, {}) for p in section.parameters]
        if not all("exp_avg" in moment for moment in moments):
            raise ContractError(
                "frozen_adam goes on from the state of torch.optim.Adam or AdamW: begin with steps of theirs, as in "
                "`bsp until step 1000, then frozen_adam`"
            )
        settings = {p: group for group in section.optimizer.param_groups for p in group["params"]}
        own = []
        for p, gradient, moment in zip(section.parameters, section.gradients, moments, strict=True):
            group = settings[p]
            if group["weight_decay"] and not _decouples(section):
                gradient = gradient + group["weight_decay"] * p
            own.append(torch.lerp(moment["exp_avg"], gradient, 1 - group["betas"][0]))
        means = yield from section.average(own)
        for p, mean, moment in zip(section.parameters, means, moments, strict=True):
            group = settings[p]
            moment["exp_avg"].copy_(mean)
            if group["weight_decay"] and _decouples(section):
                p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(group["lr"] * mean / (moment["exp_avg_sq"].sqrt() + group["eps"]))
        return state


def _decouples(section: Section) -> bool:
    """Whether weight decay acts on the parameters themselves."""
    return type(section.optimizer).__name__ == "AdamW"


named_sentence(
    "one_bit_adam",
    "bsp until step 1000, then frozen_adam / flat+scaled_sign+two_hop(memory=true)+error_feedback / allreduce",
    axis="compression",
    paper="Tang et al., ICML 2021",
    doc="""Adam for a while, then momenta of one bit each, with memories at workers and owners, behind frozen variances.

    Other lengths of the first stage are written out. The scale is the mean magnitude, which makes signs a contraction;
    the published program's root mean square is none for spiky momenta.
    """,
)
