"""Sparsified SGD with error memory: its distance from the point of plain SGD is the mean of the workers' memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.registry import technique
from laconic.theory.values import counts, require


@dataclass(frozen=True)
class Lag:
    """Measured lags of sparsified SGD.

    `xi` is the distance between the mean of the compressed steps and the compressed mean step, over the norm of the
    mean step; `memory` is the mean norm of the memories; `drift` is the norm of their mean, which is the distance |v -
    x| between the real point v and that of plain SGD, x.
    """

    xi: float
    memory: float
    drift: float


@technique(
    "alistarh_topk_theory",
    axis="theory",
    paper="Alistarh, Hoefler, Johansson, Konstantinov, Khirirat, Renggli, NeurIPS 2018",
    why_no_word="It measures what a theorem about `topk+ef` assumes, beside a training with that sentence.",
)
def lag(steps: Tensor, before: Tensor, compress: Callable[[Tensor], Tensor]) -> Lag:
    """Measure what the analysis of TopK SGD with error memory assumes (a small xi) and concludes (a bounded drift).

    `steps` are the workers' rate times gradient, `before` their memories before the step, one row each; `compress`
    returns what a biased compressor transmits of a flat tensor. It is dense, so for steps that are probed only. Reading
    chosen: an instrument and the geometric sum; the theorems' constants are not reproduced.
    """
    wanted = steps + before
    sent = torch.stack([compress(row) for row in wanted])
    distance = (compress(wanted.mean(dim=0)) - sent.mean(dim=0)).norm()
    kept = wanted - sent
    step = float(steps.mean(dim=0).norm())
    xi = float(distance) / step if step else (0.0 if float(distance) == 0 else torch.inf)
    return Lag(xi, float(kept.norm(dim=1).mean()), float(kept.mean(dim=0).norm()))


def ratio(numel: int, k: int, slack: float) -> float:
    """Return (1 + ρ')(n - k)/n, the factor on a squared drift in a step, below 1 for a small enough slack ρ'.

    n is the number of elements, and k how many of them are sent.
    """
    counts(numel=numel, k=k, slack=slack)
    require(k <= numel, f"k={k} coordinates of {numel}")
    found = (1 + slack) * (numel - k) / numel
    require(found < 1, f"slack={slack:g} must be below k/(n - k) = {k / max(1, numel - k):g}")
    return found


def drift_bound(steps: Sequence[float], numel: int, k: int, slack: float | None = None) -> float:
    """Return the bound on |v - x|² after steps of these norms (rate times gradient, root mean square over workers).

    Each squared norm counts (1 + 1/ρ')(n - k)/n, and is multiplied by `ratio` in every later step. The slack ρ' is
    k/(2n) unless it is given.
    """
    slack = k / (2 * numel) if slack is None else slack
    factor, total = ratio(numel, k, slack), 0.0
    for norm in steps:
        total = factor * total + (1 + 1 / slack) * (numel - k) / numel * norm**2
    return total
