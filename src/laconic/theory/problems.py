"""Objectives with known constants, against which bounds are tested. Their minimum is 0; arrays are (…, dimension).

Noise is Gaussian: E|noise|^2 = sigma^2 + growth |grad f|^2 over all coordinates together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from laconic.theory.values import Problem

Array = NDArray[np.float64]


class Objective(Protocol):
    """What a simulation needs of an objective: value, gradient, and the constants of its noise."""

    @property
    def sigma(self) -> float: ...

    @property
    def growth(self) -> float: ...

    def value(self, x: Array) -> Array: ...

    def gradient(self, x: Array) -> Array: ...


def noisy_gradient(
    objective: Objective, x: Array, shape: tuple[int, ...], generator: np.random.Generator, batch: float = 1
) -> Array:
    """Return a stochastic gradient at each row of x, over `batch` samples; axes beyond `shape` share the noise."""
    exact = objective.gradient(x)
    variance: float | Array = objective.sigma**2
    if objective.growth:
        variance = variance + objective.growth * np.sum(exact**2, axis=-1, keepdims=True)
    elif objective.sigma == 0:
        return exact
    exact += generator.standard_normal(shape) * np.sqrt(variance / (batch * shape[-1]))
    return exact


@dataclass(frozen=True)
class Quadratic:
    """A quadratic: half the sum of curvature x^2, with its minimum at 0."""

    curvature: tuple[float, ...]
    sigma: float = 0.0
    growth: float = 0.0

    @classmethod
    def between(cls, mu: float, L: float, dimension: int, sigma: float = 0.0) -> Quadratic:
        """Make a quadratic with curvatures spread evenly in logarithm from mu to L."""
        return cls(tuple(np.geomspace(mu, L, dimension)), sigma)

    @cached_property
    def eigenvalues(self) -> Array:
        return np.array(self.curvature)

    def value(self, x: Array) -> Array:
        return np.asarray(0.5 * (x * x) @ self.eigenvalues)

    def gradient(self, x: Array) -> Array:
        return x * self.eigenvalues

    def problem(self, start: Array, G2: float | None = None) -> Problem:
        L, mu = float(self.eigenvalues.max()), float(self.eigenvalues.min())
        return Problem(L, self.sigma**2, mu, G2, float(self.value(start)), float(np.linalg.norm(start)), self.growth)


@dataclass(frozen=True)
class LeastSquares:
    """|A x|^2 / (2 rows) with more columns than rank: PL, but flat in places and so not strongly convex."""

    matrix: tuple[tuple[float, ...], ...]
    sigma: float = 0.0
    growth: float = 0.0

    @classmethod
    def of_rank(cls, mu: float, L: float, rank: int, dimension: int, sigma: float, seed: int = 0) -> LeastSquares:
        """Make a problem with curvatures from mu to L in `rank` random directions and 0 in the others."""
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dimension, rank)))
        rows = np.sqrt(rank * np.geomspace(mu, L, rank))[:, None] * basis.T
        return cls(tuple(map(tuple, rows)), sigma)

    @cached_property
    def hessian(self) -> Array:
        A = np.array(self.matrix)
        return np.asarray(A.T @ A / len(A))

    def value(self, x: Array) -> Array:
        return np.asarray(0.5 * np.einsum("...i,...i->...", x, x @ self.hessian))

    def gradient(self, x: Array) -> Array:
        return x @ self.hessian

    def problem(self, start: Array) -> Problem:
        eigenvalues = np.linalg.eigvalsh(self.hessian)
        positive = eigenvalues[eigenvalues > 1e-9]
        L, mu, F0 = float(eigenvalues[-1]), float(positive[0]), float(self.value(start))
        return Problem(L, self.sigma**2, mu, F0=F0, M=self.growth)


@dataclass(frozen=True)
class OneSided:
    """Curvature L on one side of the optimum and mu on the other, so that noise drives local steps away from it."""

    mu: float
    L: float
    sigma: float = 0.0
    growth: float = 0.0

    def value(self, x: Array) -> Array:
        return np.asarray(0.5 * np.sum(np.where(x > 0, self.L, self.mu) * x * x, axis=-1))

    def gradient(self, x: Array) -> Array:
        return np.where(x > 0, self.L, self.mu) * x

    def problem(self, start: Array) -> Problem:
        F0, R0 = float(self.value(start)), float(np.linalg.norm(start))
        return Problem(self.L, self.sigma**2, self.mu, F0=F0, R0=R0, M=self.growth)


@dataclass(frozen=True)
class AbsoluteLoss:
    """The sum of |x| over the root of the dimension: convex, gradients of norm 1, smooth nowhere near the optimum."""

    sigma: float = 0.0
    growth: float = 0.0

    def value(self, x: Array) -> Array:
        return np.asarray(np.abs(x).sum(axis=-1) / np.sqrt(x.shape[-1]))

    def gradient(self, x: Array) -> Array:
        return np.asarray(np.sign(x) / np.sqrt(x.shape[-1]))
