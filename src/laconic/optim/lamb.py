"""LAMB: Adam's direction, with LARS's rate for each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from laconic.optim.checks import require_non_negative
from laconic.optim.layerwise import Layerwise


class LAMB(Layerwise):
    """w = w − lr·ratio·u, where u is Adam's bias-corrected direction plus decay·w and ratio is phi(‖w‖)/‖u‖ per layer.

    phi is the identity, or clips to `norm_bounds`; the ratio is 1 where a norm is 0. A "layer" is a parameter tensor. A
    group with `adapt=False` uses ratio = 1, which is AdamW with these betas and eps (and the group's weight decay). The
    paper scales the learning rate with the square root of the batch and warms up; that is left to the scheduler. 1-bit
    LAMB uses no bias correction and keeps the ratio within `ratio_bounds` (0.01 to 10); for it a moving average of each
    layer's ratios is kept, with factor 0.9.

    - `params`, `lr`, `betas`, `eps`, `weight_decay`: as for `torch.optim.AdamW`.
    - `norm_bounds`: the range to which phi clips a layer's norm.
    - `adapt`: scale each layer's step by the ratio.
    - `bias_correction`: correct the two moments for their start at zero, as Adam does.
    - `ratio_bounds`: the range within which the ratio is kept.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        norm_bounds: tuple[float, float] | None = None,
        adapt: bool = True,
        bias_correction: bool = True,
        ratio_bounds: tuple[float, float] | None = None,
    ) -> None:
        require_non_negative(lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "norm_bounds": norm_bounds}
        more = {"adapt": adapt, "bias_correction": bias_correction, "ratio_bounds": ratio_bounds}
        super().__init__(params, settings | more)

    def _step(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[w]
        if not state:
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(w), exp_avg_sq=torch.zeros_like(w))
            state["ratio"] = w.new_zeros(())
        beta1, beta2 = group["betas"]
        state["step"] += 1
        t = float(state["step"])
        m = state["exp_avg"].lerp_(g, 1 - beta1)
        v = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        corrections = (1 - beta1**t, 1 - beta2**t) if group["bias_correction"] else (1.0, 1.0)
        u = (m / corrections[0]) / ((v / corrections[1]).sqrt() + group["eps"])
        if group["weight_decay"]:
            u.add_(w, alpha=group["weight_decay"])
        if group["adapt"]:
            ratio = _ratio(w, u, group["norm_bounds"], group["ratio_bounds"])
            state["ratio"].lerp_(ratio, 0.1)
            u *= ratio
        w.sub_(group["lr"] * u)


def _ratio(w: Tensor, u: Tensor, norms: tuple[float, float] | None, bounds: tuple[float, float] | None) -> Tensor:
    size, length = w.norm(), u.norm()
    ratio = (size if norms is None else size.clamp(*norms)) / length
    if bounds is not None:
        ratio = ratio.clamp(*bounds)
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(size))
