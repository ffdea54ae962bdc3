"""Mixing matrices: which workers receive each other's models in a step, and with what weight.

Row i holds the weights of worker i: its model x_i becomes the sum over j of W[i, j]·x_j. Rows that sum to one keep a
consensus, columns that sum to one keep the mean of all models, and the spectrum of W says how fast workers agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import LaconicError, StrategyError

Matrix = NDArray[np.float64]
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Mixing:
    """One period of mixing matrices, checked at construction to bring connected workers to agreement.

    `stochastic` says what sums to one: rows and columns ("doubly"), only columns (the shares that a worker sends, for
    push-sum) or only rows. `signed` allows negative weights, as elastic averaging's best matrix has one; such a matrix,
    or one where a worker keeps nothing of its own model, must contract.
    """

    rounds: tuple[Matrix, ...]
    stochastic: Literal["doubly", "column", "row"] = "doubly"
    signed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", tuple(_frozen(matrix) for matrix in self.rounds))
        if not self.rounds:
            raise LaconicError("a mixing needs at least one matrix; give one per step of its period")
        size = len(self.rounds[0])
        for step, matrix in enumerate(self.rounds):
            if matrix.shape != (size, size) or size == 0 or not np.isfinite(matrix).all():
                raise LaconicError(
                    f"the mixing matrix of step {step} has shape {matrix.shape}, or entries that are no numbers; give "
                    f"finite {size}×{size} matrices"
                )
            if not self.signed and (matrix < 0).any():
                i, j = np.argwhere(matrix < 0)[0]
                raise LaconicError(
                    f"worker {i} would mix in worker {j} with weight {matrix[i, j]:g}; give none below 0"
                )
            self._check_sums(step, matrix)
        self._check_connected()
        doubtful = any((np.diagonal(matrix) <= 0).any() or (matrix < 0).any() for matrix in self.rounds)
        if doubtful and self.rho >= 1 - 1e-12:
            raise LaconicError(
                f"these mixing weights never bring workers together (rho is {self.rho:g}); let every worker keep a "
                "share of its own model"
            )

    def _check_sums(self, step: int, matrix: Matrix) -> None:
        axes = {"doubly": ("row", "column"), "row": ("row",), "column": ("column",)}[self.stochastic]
        for name in axes:
            sums = matrix.sum(axis=1 if name == "row" else 0)
            worst = int(np.abs(sums - 1).argmax())
            if abs(sums[worst] - 1) > _TOLERANCE:
                kept = "a consensus" if name == "row" else "the mean of the models"
                raise LaconicError(
                    f"{name} {worst} of step {step}'s mixing matrix sums to {sums[worst]:g}, which would not keep "
                    f"{kept}; give {name}s that sum to 1"
                )

    def _check_connected(self) -> None:
        for links in (self._ever, self._ever.T):
            reached = _reachable(links)
            if len(reached) < self.size:
                alone = min(set(range(self.size)) - reached)
                raise LaconicError(
                    f"worker {alone} and worker 0 never reach each other over the {len(self.rounds)} step(s) of this "
                    "mixing's period; add edges until the graph is connected"
                )

    # ------------------------------------------------------------------------------------------ graph

    @property
    def size(self) -> int:
        return len(self.rounds[0])

    @property
    def period(self) -> int:
        return len(self.rounds)

    @property
    def is_static(self) -> bool:
        return self.period == 1

    @property
    def is_symmetric(self) -> bool:
        return all(np.allclose(matrix, matrix.T, rtol=0, atol=_TOLERANCE) for matrix in self.rounds)

    def at(self, step: int) -> Matrix:
        """Return the matrix of a step."""
        return self.rounds[step % self.period]

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs of workers that communicate at some step, in either direction."""
        a, b = np.triu(self._ever | self._ever.T, 1).nonzero()
        return tuple(zip(a.tolist(), b.tolist(), strict=True))

    @property
    def degree(self) -> float:
        """The number of messages that the busiest worker sends in a step, as the mean over a period."""
        sent = [((matrix != 0) & ~np.eye(self.size, dtype=bool)).sum(axis=0).max() for matrix in self.rounds]
        return float(np.mean(sent))

    @property
    def neighbours(self) -> int:
        """The number of different workers that the busiest one sends to over a period."""
        return int((self._ever & ~np.eye(self.size, dtype=bool)).sum(axis=0).max())

    @property
    def _ever(self) -> NDArray[np.bool_]:
        return np.asarray((np.stack(self.rounds) != 0).any(axis=0))

    # ------------------------------------------------------------------------------------------ spectrum

    @cached_property
    def eigenvalues(self) -> Matrix:
        """The eigenvalues of the period's mean matrix (of its symmetric part, if directed), in descending order."""
        mean = np.mean(self.rounds, axis=0)
        return np.linalg.eigvalsh((mean + mean.T) / 2)[::-1]

    @property
    def lambda_2(self) -> float:
        return float(self.eigenvalues[1]) if self.size > 1 else 0.0

    @property
    def lambda_min(self) -> float:
        return float(self.eigenvalues[-1])

    @cached_property
    def rho(self) -> float:
        """The factor on the squared distance to consensus in a step: max(|lambda_2|, |lambda_min|)² where W is
        symmetric and static; otherwise the geometric mean over the steps of a period."""
        product = np.eye(self.size)
        for matrix in self.rounds:
            product = matrix @ product
        if self.stochastic == "doubly":
            left = float(np.linalg.norm(product - 1 / self.size, 2))
        else:  # the limit is no plain mean, so the second eigenvalue gives the speed
            left = float(np.sort(np.abs(np.linalg.eigvals(product)))[-2]) if self.size > 1 else 0.0
        return float((left if left > 1e-13 else 0.0) ** (2 / self.period))

    @property
    def gap(self) -> float:
        """The spectral gap, 1 − sqrt(rho): 1 where one step (or period) brings full agreement."""
        return 1 - math.sqrt(self.rho)

    # ------------------------------------------------------------------------------------------ for rules

    def must_be(self, rule: str, *wanted: Literal["doubly", "column", "symmetric", "static"]) -> Mixing:
        """Return itself if it has the wanted properties, else raise an error that says what the rule needs."""
        holds = {
            "doubly": self.stochastic == "doubly",
            "column": self.stochastic in ("doubly", "column"),
            "symmetric": self.is_symmetric,
            "static": self.is_static,
        }
        why = {
            "doubly": ("rows and columns that sum to 1", "an undirected graph such as ring, or sgp in its place"),
            "column": ("columns that sum to 1", "a graph that keeps the sum of all models, such as ring"),
            "symmetric": ("links in both directions", "an undirected graph, such as ring"),
            "static": ("the same neighbours in every step", "a static graph, such as ring"),
        }
        for what in wanted:
            if not holds[what]:
                raise StrategyError(f"{rule} needs {why[what][0]}; write {why[what][1]}")
        return self


def _frozen(matrix: ArrayLike) -> Matrix:
    out = np.array(matrix, dtype=np.float64)
    out.flags.writeable = False
    return out


def _reachable(links: NDArray[np.bool_]) -> set[int]:
    """Return the workers that can be reached from worker 0."""
    seen = np.zeros(len(links), dtype=bool)
    fresh = seen.copy()
    fresh[0] = True
    while fresh.any():
        seen |= fresh
        fresh = links[fresh].any(axis=0) & ~seen
    return set(np.flatnonzero(seen).tolist())


# ---------------------------------------------------------------------------------------------- weights


def metropolis(size: int, edges: Iterable[tuple[int, int]]) -> Matrix:
    """Return Metropolis–Hastings weights 1/(1 + the larger degree), doubly stochastic on any undirected graph."""
    links = adjacency(size, edges)
    degree = links.sum(axis=1)
    return with_self_weights(links / (1.0 + np.maximum.outer(degree, degree)))


def equal_weights(size: int, edges: Iterable[tuple[int, int]], weight: float) -> Matrix:
    """Return a matrix with the same weight on every edge, in which each worker keeps the rest."""
    return with_self_weights(weight * adjacency(size, edges))


def push_weights(size: int, arrows: Sequence[tuple[int, int]]) -> Matrix:
    """Return weights by which each worker divides its model equally among itself and its receivers.

    They are column-stochastic on any directed graph.
    """
    matrix = np.eye(size)
    for source, to in arrows:
        matrix[to, source] = 1.0
    return np.asarray(matrix / matrix.sum(axis=0))


def adjacency(size: int, edges: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return the symmetric adjacency matrix of these edges, without loops."""
    links = np.zeros((size, size), dtype=bool)
    for a, b in edges:
        links[a, b] = links[b, a] = True
    return links & ~np.eye(size, dtype=bool)


def with_self_weights(matrix: NDArray[np.floating[Any]]) -> Matrix:
    """Return the matrix with a diagonal that makes rows sum to one."""
    return np.asarray(matrix + np.diag(1 - matrix.sum(axis=1)), dtype=np.float64)
