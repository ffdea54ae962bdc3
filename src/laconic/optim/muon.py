"""Muon for the hidden matrices of a model and AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim._muon import muon
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from laconic.errors import LaconicError
from laconic.optim.checks import require_non_negative
from laconic.optim.layerwise import Layerwise

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton–Schulz quintic that brings singular values near one
_SCALES = ("match_rms_adamw", "original")


class Muon(Layerwise):
    """Step matrices along their momentum with all singular values near one, and other parameters as AdamW does.

    M = momentum·M + G, U = G + momentum·M, X = U with singular values near one by five Newton–Schulz iterations
    (torch's, in bfloat16), w = w − lr·scale·X − lr·decay·w. The scale of an a×b matrix is 0.2·√max(a, b), so that one
    rate serves both, or √max(1, a/b) with `adjust_lr_fn="original"`. A group with `muon=False` is left to AdamW as a
    whole, for embeddings and the output head: `Muon(matrices_apart(model))` makes the two groups. Kernels of
    convolutions are left to AdamW too.

    - `params`, `lr`, `weight_decay`: as for `torch.optim.AdamW`.
    - `momentum`: of the matrices.
    - `adjust_lr_fn`: `"match_rms_adamw"` or `"original"`, the scale of a matrix's step.
    - `betas`, `eps`: AdamW's, for all other parameters.
    - `muon`: whether a group's matrices are stepped this way.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        muon: bool = True,
    ) -> None:
        require_non_negative(
            lr=lr, momentum=momentum, weight_decay=weight_decay, beta1=betas[0], beta2=betas[1], eps=eps
        )
        if adjust_lr_fn not in _SCALES:
            raise LaconicError(f"adjust_lr_fn={adjust_lr_fn!r} is no scale of Muon's: write {' or '.join(_SCALES)}")
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adjust_lr_fn": adjust_lr_fn}
        super().__init__(params, {**settings, "betas": betas, "eps": eps, "muon": muon})

    def _step(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        if group["muon"] and w.dim() == 2:
            self._along_momentum(w, g, group)
        else:
            self._adamw(w, g, group)

    def _along_momentum(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[w]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(w)
        muon(
            [w],
            [g],
            [state["momentum_buffer"]],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            nesterov=True,
            ns_coefficients=_COEFFICIENTS,
            eps=1e-7,
            ns_steps=5,
            adjust_lr_fn=group["adjust_lr_fn"],
            has_complex=False,
        )

    def _adamw(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[w]
        if not state:
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(w), exp_avg_sq=torch.zeros_like(w))
        adamw(
            [w],
            [g],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def matrices_apart(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters of `model` as Muon's two groups: hidden matrices; and the rest, which is embeddings, the
    output head (the last linear layer), norms, biases and the like."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    outside = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    outside |= {id(module.weight) for module in linear[-1:]}
    trained = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in trained if p.dim() == 2 and id(p) not in outside]
    known = {id(p) for p in hidden}
    rest = [p for p in trained if id(p) not in known]
    groups: list[dict[str, Any]] = [{"params": hidden}, {"params": rest, "muon": False}]
    return [group for group in groups if group["params"]]
