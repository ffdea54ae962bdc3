"""Hydro: search on a narrow surrogate of the model, with fused trials, and start the target before the search ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laconic.cluster.hpo.fused import Fused, Loss
from laconic.errors import ClusterError
from laconic.registry import technique

if TYPE_CHECKING:
    from torch import Tensor, nn

Build = Callable[[int], "nn.Module"]
"""Builds the model at a width."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    - `best`: the number of the best trial.
    - `losses`: of all trials, over the last tenth of their steps.
    - `eager`: the step at which the target could have been started with the rate that was best by then, and that
      trial's number; None where no trial was best for long enough.
    - `weights`: the parameters of the surrogate, times steps and trials: what the search cost, to compare with others.
    """

    best: int
    losses: tuple[float, ...]
    eager: tuple[int, int] | None
    weights: float


@technique(
    "hydro",
    axis="cluster",
    paper="Hu et al., OSDI 2023",
    why_no_word="It searches for the hyper-parameters of a training, which is then run with any sentence.",
)
def search(
    build: Build,
    width: int,
    rates: Sequence[float],
    loss: Loss,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    shrink: int = 8,
    fused: int | None = None,
    patience: int = 50,
    seed: int = 0,
) -> Found:
    """Train a surrogate with each learning rate and return which was best. The surrogate is the model at a fraction of
    its width; under the maximal-update parametrisation the target, scaled by
    `laconic.cluster.hpo.maximal_update.scale` with the surrogate as its base, has its best rate at about the same
    place. Trials run fused, some at a time, all on the same batches from equal first weights.

    A trial whose average loss has been the lowest for `patience` steps is good enough to start its target at once. The
    surrogate trials fit into bubbles of pipelines (`laconic.cluster.hpo.bubbles`) and onto any idle GPU
    (`laconic.cluster.hpo.places`). The default of `shrink` is the paper's example; `patience` is this library's.

    - `build`: makes the model at a width.
    - `width`: of the target.
    - `rates`: a trial each.
    - `loss`: a function of a model and a batch.
    - `batches`: of the training.
    - `shrink`: by how much the surrogate is narrower.
    - `fused`: how many trials run as one (`laconic.cluster.hpo.fused.most_fused` finds it); default: all.
    - `patience`: steps for which a trial has to be best before its target starts.
    - `seed`: of the first weights.
    """
    import torch

    if width % shrink or not rates:
        raise ClusterError(f"a width of {width} has no {shrink}th part, or there are no rates to try")
    kept = list(batches)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(width // shrink)
    some = fused or len(rates)
    rows = []
    for begin in range(0, len(rates), some):
        part = rates[begin : begin + some]
        trials = Fused([model] * len(part), part)
        rows.append(torch.stack([trials.step(loss, *batch) for batch in kept]))
    curves = torch.nan_to_num(torch.cat(rows, dim=1), nan=torch.inf)
    last = curves[-max(len(kept) // 10, 1) :].mean(dim=0)
    weights = sum(p.numel() for p in model.parameters()) * len(kept) * len(rates)
    return Found(int(last.argmin()), tuple(last.tolist()), _eager(curves, patience), float(weights))


def _eager(curves: Tensor, patience: int) -> tuple[int, int] | None:
    """Return when one trial's mean loss of late has been the lowest for long enough, and which it is."""
    smooth, best, since = curves[0].clone(), -1, 0
    for step, losses in enumerate(curves):
        smooth = 0.9 * smooth + 0.1 * losses
        now = int(smooth.argmin())
        best, since = (best, since) if now == best else (now, step)
        if step - since >= patience:
            return step, best
    return None
