"""The simple noise scale of gradients: the batch from which on a larger one helps little (McCandlish et al., 2018).

B = tr(Σ) / |G|², where G is the mean gradient and Σ the covariance of a single sample's. Workers that hold gradients of
a batch each give norms at two sizes of batch, their own and that of all together, from which both follow without bias
(appendix A.1 there).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Noise:
    """What the workers' gradients say at one place: |G|², which chance may put below zero, and tr(Σ)."""

    signal: float
    trace: float

    @property
    def scale(self) -> float:
        """The noise scale in samples; infinite where no common gradient is seen."""
        return self.trace / self.signal if self.signal > 0 else float("inf")


def noise_of(gradients: Iterable[Sequence[Tensor]], samples: int) -> Noise:
    """Return the noise of the gradients of several workers, each the mean over so many samples."""
    total: list[Tensor] = []
    squares: list[float] = []
    for own in gradients:
        squares.append(_square(own))
        total = [one.double() for one in own] if not total else [x + one for x, one in zip(total, own, strict=True)]
    workers = len(squares)
    small, large = statistics.fmean(squares), _square(total) / workers**2
    trace = (small - large) * samples / (1 - 1 / workers)
    return Noise((workers * large - small) / (workers - 1), trace)


def _square(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([one.double().square().sum() for one in tensors]).sum())


class NoiseScale:
    """The noise scale of a run's gradients, at points on its way.

    - `task`: whose loss and batches are taken. Gradients are computed here, worker after worker, on batches of the step
      that comes next, so that nothing of the run itself changes.
    """

    def __init__(self, task: Any, seed: int, workers: int) -> None:
        self._task, self._seed, self._workers = task, seed, workers
        self._bare: nn.Module = task.build(seed).to(task.device)
        self.curve: list[tuple[int, float]] = []

    def at(self, model: Callable[..., Tensor], step: int) -> None:
        """Measure before a step, at the parameters of a model like the task's own."""
        assert isinstance(model, nn.Module)
        self._bare.load_state_dict(model.state_dict())
        gradients = (self._gradient(step, worker) for worker in range(self._workers))
        self.curve.append((step, noise_of(gradients, self._task.samples).scale))

    def _gradient(self, step: int, worker: int) -> Sequence[Tensor]:
        loss = self._task.loss(self._bare, *self._task.batch(self._seed, step, worker))
        return torch.autograd.grad(loss, list(self._bare.parameters()))

    @property
    def scale(self) -> float:
        """The median over the points: at half of them the noise scale was smaller."""
        return statistics.median(scale for _, scale in self.curve)

    @property
    def fields(self) -> dict[str, Any]:
        """What a row says of it, with None for infinity."""
        known = [(step, _finite(scale)) for step, scale in self.curve]
        return {"noise_scale": _finite(self.scale), "noise_curve": known} if known else {}


def _finite(scale: float) -> float | None:
    return round(scale, 1) if math.isfinite(scale) else None
