"""Optimus's two models of a job that trains with parameter servers: its speed, and when it converges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.errors import ClusterError


@dataclass(frozen=True)
class ServerSpeed:
    """How many steps a second are made with servers and workers.

    - `times`: the coefficients: for asynchronous workers those of 1, w/p, w and p; for synchronous ones those of M/w,
      1, w/p, w and p.
    - `batch`: M, the samples of a synchronous step; 0: workers are asynchronous.
    """

    times: tuple[float, ...]
    batch: int = 0

    def steps_per_second(self, servers: int, workers: int) -> float:
        """Return the steps that all workers make together."""
        seconds = float(np.dot(_terms(servers, workers, self.batch), self.times))
        return 1 / seconds if self.batch else workers / seconds


def _terms(servers: int, workers: int, batch: int) -> list[float]:
    common = [1.0, workers / servers, float(workers), float(servers)]
    return [batch / workers, *common] if batch else common


def fit_speed(samples: Sequence[tuple[int, int, float]], batch: int = 0) -> ServerSpeed:
    """Return the speed that was measured with a few numbers of servers and workers, by non-negative least squares of
    the seconds that a step takes.

    - `samples`: servers, workers and steps a second.
    - `batch`: the samples of a synchronous step; 0: workers are asynchronous.
    """
    from scipy.optimize import nnls

    table = np.array([_terms(servers, workers, batch) for servers, workers, _ in samples])
    if np.linalg.matrix_rank(table) < table.shape[1]:
        raise ClusterError(
            f"{len(samples)} samples do not tell {table.shape[1]} coefficients apart; measure with more numbers of "
            "servers and workers"
        )
    taken = np.array([(1 if batch else workers) / speed for _, workers, speed in samples])
    return ServerSpeed(tuple(nnls(table, taken)[0].tolist()), batch)


@dataclass(frozen=True)
class LossCurve:
    """The loss after k steps: scale * (1 / (b0 k + b1) + b2), with non-negative coefficients."""

    scale: float
    coefficients: tuple[float, float, float]

    def loss(self, step: float) -> float:
        """Return the loss after so many steps."""
        falls, begins, rests = self.coefficients
        return self.scale * (1 / (falls * step + begins) + rests)

    def steps_to_converge(self, epoch_steps: int, threshold: float, epochs: int = 3) -> int:
        """Return after how many steps the loss has fallen by less than a threshold in each of several epochs.

        - `epoch_steps`: the steps of an epoch.
        - `threshold`: of the loss.
        - `epochs`: how many epochs in a row.
        """
        if not threshold > 0:
            raise ClusterError(f"a loss that has to fall by less than {threshold} never converges; ask for more than 0")

        def falls_little(epoch: int) -> bool:  # it falls ever less
            return self.loss(epoch * epoch_steps) - self.loss((epoch + 1) * epoch_steps) < threshold

        high = 1
        while not falls_little(high):
            high *= 2
        low = -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if falls_little(middle) else (middle, high)
        return (high + epochs) * epoch_steps


def fit_loss(steps: Sequence[float], losses: Sequence[float], window: int = 2, far: float = 5.0) -> LossCurve:
    """Return the curve through measured losses. They are divided by the largest; what lies far from its neighbours is
    left out; for each final loss that is tried, the others follow by non-negative least squares.

    - `steps`: when the losses were measured.
    - `losses`: the losses.
    - `window`: the neighbours on either side.
    - `far`: how many times the median distance from them a loss may have.
    """
    from scipy.optimize import minimize_scalar, nnls

    at, measured = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    if len(at) < 3 or measured.min() <= 0:
        raise ClusterError("a loss curve is fitted to three losses above zero, or more")
    scale = float(measured.max())
    at, measured = _without_outliers(at, measured / scale, window, far)
    unit = float(max(at.max(), 1.0))
    table = np.column_stack([at / unit, np.ones_like(at)])

    def fit(rests: float) -> tuple[float, float, float]:
        over = measured - rests
        weight = over**2  # an error of 1/x counts as one of x does
        falls, begins = nnls(table * weight[:, None], weight / over)[0]
        return float(falls) / unit, float(begins), rests

    def error(rests: float) -> float:
        falls, begins, _ = fit(rests)
        below = falls * at + begins
        return float("inf") if below.min() <= 0 else float(((1 / below + rests - measured) ** 2).sum())

    most = float(measured.min()) * (1 - 1e-6)
    tried = np.linspace(0.0, most, 33)
    best = int(np.argmin([error(float(rests)) for rests in tried]))
    low, high = float(tried[max(best - 1, 0)]), float(tried[min(best + 1, 32)])
    found = minimize_scalar(error, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    rests = min((0.0, float(tried[best]), float(found.x)), key=error)
    return LossCurve(scale, fit(rests))


def _without_outliers(at: np.ndarray, measured: np.ndarray, window: int, far: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses that are near the median of their neighbours."""
    padded = np.pad(measured, window, mode="reflect" if len(measured) > window else "edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1)
    away = np.abs(measured - np.median(around, axis=1))
    near = away <= far * max(float(np.median(away)), 1e-3)
    near[0] = near[0] or measured[0] >= measured[1:].max(initial=0.0)  # the steepest part is at the beginning
    return (at[near], measured[near]) if near.sum() >= 3 else (at, measured)
