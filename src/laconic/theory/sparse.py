"""Sparsified SGD with error memory is SGD but for the memories' mean, by which its point is away: what that can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.registry import technique
from laconic.theory.values import counts, require


@dataclass(frozen=True)
class Lag:
    """`xi`: how far the mean of what is said is from what would be said of the mean, over the mean step; `memory`: the
    mean norm of the memories; `drift`: the norm of their mean, which is |v - x| of the real and of SGD's point."""

    xi: float
    memory: float
    drift: float


@technique(
    "alistarh_topk_theory",
    axis="theory",
    paper="Alistarh, Hoefler, Johansson, Konstantinov, Khirirat, Renggli, NeurIPS 2018",
)
def lag(steps: Tensor, before: Tensor, compress: Callable[[Tensor], Tensor]) -> Lag:
    """What an analysis of TopK SGD with error memory assumes (a small xi) and concludes (a bounded drift), measured.

    `steps` are the workers' rate times gradient, `before` their memories before the step, one row each; `compress` says
    of a flat tensor what any biased compressor would. Dense, so for steps that are probed only. Reading chosen: an
    instrument and the geometric sum; the theorems' constants are not reproduced.
    """
    wanted = steps + before
    said = torch.stack([compress(row) for row in wanted])
    apart = (compress(wanted.mean(dim=0)) - said.mean(dim=0)).norm()
    kept = wanted - said
    step = float(steps.mean(dim=0).norm())
    xi = float(apart) / step if step else (0.0 if float(apart) == 0 else torch.inf)
    return Lag(xi, float(kept.norm(dim=1).mean()), float(kept.mean(dim=0).norm()))


def ratio(numel: int, k: int, slack: float) -> float:
    """(1 + ρ')(n - k)/n, by which a squared drift shrinks in a step: below 1 for a small enough slack ρ'."""
    counts(numel=numel, k=k, slack=slack)
    require(k <= numel, f"k={k} coordinates of {numel}")
    found = (1 + slack) * (numel - k) / numel
    require(found < 1, f"slack={slack:g} must be below k/(n - k) = {k / max(1, numel - k):g}")
    return found


def drift_bound(steps: Sequence[float], numel: int, k: int, slack: float | None = None) -> float:
    """|v - x|² after steps of these norms (rate times gradient, root mean square over workers): each counts
    (1 + 1/ρ')(n - k)/n, and less by `ratio` with every step that follows. The slack is k/(2n) unless it is given."""
    slack = k / (2 * numel) if slack is None else slack
    shrinks, total = ratio(numel, k, slack), 0.0
    for norm in steps:
        total = shrinks * total + (1 + 1 / slack) * (numel - k) / numel * norm**2
    return total
