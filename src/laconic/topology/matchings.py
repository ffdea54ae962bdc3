"""A graph as matchings, which are sets of links without a common worker, and how often each should be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from laconic.topology.mixing import Matrix

Pair = tuple[int, int]


def edge_colouring(size: int, edges: Sequence[Pair]) -> list[list[Pair]]:
    """Return disjoint matchings that cover all edges, one more than the largest degree at most (Misra, Gries, 1992)."""
    colouring = _Colouring(size)
    for u, v in edges:
        colouring.add(u, v)
    classes: dict[int, list[Pair]] = {}
    for a, b in edges:
        classes.setdefault(colouring.between(a, b), []).append((a, b))
    return [classes[c] for c in sorted(classes)]


class _Colouring:
    """A partial edge colouring, in which no two edges at a vertex have the same colour."""

    def __init__(self, size: int) -> None:
        self._by_colour: list[dict[int, int]] = [{} for _ in range(size)]  # for each vertex: neighbours by colour
        self._colours: dict[frozenset[int], int] = {}

    def between(self, a: int, b: int) -> int:
        return self._colours[frozenset((a, b))]

    def add(self, u: int, v: int) -> None:
        """Colour one more edge by a *fan*: neighbours of u, each of whose edge has a colour that the one before lacks.

        Swapping two colours along a path frees one for the end of (a part of) the fan; then its edges move up by one.
        """
        fan = [v]
        while grows := [w for w in self._by_colour[u].values() if w not in fan and self._lacks(fan[-1], u, w)]:
            fan.append(grows[0])
        c, d = self._free(u), self._free(fan[-1])
        self._swap_along(u, c, d)
        parts = (fan[: k + 1] for k in range(len(fan)))
        part = next(part for part in parts if d not in self._by_colour[part[-1]] and self._is_fan(u, part))
        colours = [*(self.between(u, w) for w in part[1:]), d]
        for w in part[1:]:
            self._clear(u, w)
        for w, colour in zip(part, colours, strict=True):
            self._paint(u, w, colour)

    def _free(self, vertex: int) -> int:
        return next(c for c in range(len(self._by_colour) + 1) if c not in self._by_colour[vertex])

    def _lacks(self, vertex: int, u: int, w: int) -> bool:
        return self.between(u, w) not in self._by_colour[vertex]

    def _is_fan(self, u: int, fan: Sequence[int]) -> bool:
        return all(self._lacks(before, u, after) for before, after in pairwise(fan))

    def _swap_along(self, u: int, c: int, d: int) -> None:
        """Exchange c and d on the path of these colours that begins at u, so that d becomes free there."""
        path, at, wanted = [], u, d
        while wanted in self._by_colour[at]:
            after = self._by_colour[at][wanted]
            path.append((at, after, wanted))
            at, wanted = after, c if wanted == d else d
        for a, b, _ in path:
            self._clear(a, b)
        for a, b, old in path:
            self._paint(a, b, c if old == d else d)

    def _paint(self, a: int, b: int, colour: int) -> None:
        self._colours[frozenset((a, b))] = colour
        self._by_colour[a][colour], self._by_colour[b][colour] = b, a

    def _clear(self, a: int, b: int) -> None:
        colour = self._colours.pop(frozenset((a, b)))
        del self._by_colour[a][colour], self._by_colour[b][colour]


@dataclass(frozen=True)
class Activation:
    """Matchings of a graph, the probability that each is active in a step, and the weight of an active link.

    `rho` is the factor by which the mean squared distance to consensus shrinks in a step.
    """

    size: int
    matchings: tuple[tuple[Pair, ...], ...]
    probabilities: tuple[float, ...]
    weight: float
    rho: float

    @cached_property
    def laplacians(self) -> tuple[Matrix, ...]:
        return tuple(laplacian(self.size, matching) for matching in self.matchings)

    def matrix(self, active: Sequence[bool]) -> Matrix:
        """Return the mixing matrix of a step in which these matchings are active."""
        total = np.zeros((self.size, self.size))
        for on, part in zip(active, self.laplacians, strict=True):
            total += on * part
        return np.eye(self.size) - self.weight * total

    def at(self, step: int, seed: int) -> Matrix:
        """Return a step's mixing matrix, the same on all workers for a seed."""
        return self.matrix(self.drawn(step, seed))

    def drawn(self, step: int, seed: int) -> list[bool]:
        """Return which matchings are active in a step."""
        draws = np.random.default_rng((seed, step)).random(len(self.matchings))
        return [bool(draw < p) for draw, p in zip(draws, self.probabilities, strict=True)]


def laplacian(size: int, edges: Sequence[Pair]) -> Matrix:
    """Return the Laplacian matrix of an undirected graph."""
    out = np.zeros((size, size))
    for a, b in edges:
        out[a, a] += 1
        out[b, b] += 1
        out[a, b] -= 1
        out[b, a] -= 1
    return out


@lru_cache(maxsize=64)
def activation(size: int, edges: tuple[Pair, ...], budget: float) -> Activation:
    """Choose matchings, probabilities and weight so that a share of the links' time helps agreement most."""
    matchings = edge_colouring(size, edges)
    parts = [laplacian(size, matching) for matching in matchings]
    probabilities = best_probabilities(parts, budget)
    weight, rho = best_weight(parts, probabilities)
    return Activation(size, tuple(map(tuple, matchings)), tuple(probabilities.tolist()), weight, rho)


def best_probabilities(parts: Sequence[Matrix], budget: float, tolerance: float = 1e-6) -> Matrix:
    """Return the M probabilities p that maximise lambda_2 of the mean Laplacian, with sum at most budget·M.

    Every p is between 0 and 1. lambda_2, the second-smallest eigenvalue, is the least of the linear functions v'·(sum
    of p_j·L_j)·v over unit vectors v, so cutting planes apply: each round's linear programme bounds the optimum from
    above, and its own lambda_2 from below, until both agree to the tolerance.
    """
    from scipy.optimize import linprog

    count = len(parts)
    if not count:
        return np.zeros(0)
    stacked = np.stack(parts)
    best, best_value = np.full(count, budget), -np.inf
    cuts: list[Matrix] = []
    p = best
    for _ in range(500):
        values, vectors = np.linalg.eigh(np.tensordot(p, stacked, 1))
        if values[1] > best_value:
            best, best_value = p, float(values[1])
        low = vectors[:, 1:][:, values[1:] <= values[1] + 0.1 * max(values[-1], 1e-12)]
        cuts += [np.einsum("i,kij,j->k", v, stacked, v) for v in low.T]
        bound = linprog(
            [*np.zeros(count), -1.0],
            A_ub=[*([*-cut, 1.0] for cut in cuts), [*np.ones(count), 0.0]],
            b_ub=[*np.zeros(len(cuts)), budget * count],
            bounds=[*[(0, 1)] * count, (0, None)],
        )
        if -bound.fun - best_value <= tolerance * max(1.0, best_value):
            break
        p = 0.5 * (bound.x[:-1] + best)  # halfway to the best so far, since plain cutting planes oscillate
    left = budget * count - best.sum()
    room = count - best.sum()
    filled = best + (1 - best) * (max(left, 0.0) / room if room > 1e-12 else 0.0)  # more never agrees more slowly
    return np.clip(filled, 0, 1)


def best_weight(parts: Sequence[Matrix], probabilities: Matrix) -> tuple[float, float]:
    """Return the alpha that minimises rho = |E[W'W] − J| for W = I − alpha·(sum of the active L_j), and that rho.

    J is the matrix that averages over all workers, and L_j the Laplacian of matching j.
    """
    from scipy.optimize import minimize_scalar

    if not len(parts):
        return 0.0, 0.0
    size = len(parts[0])
    mean = np.tensordot(probabilities, np.stack(parts), 1)
    square = mean @ mean + 2 * np.tensordot(probabilities * (1 - probabilities), np.stack(parts), 1)
    start = np.eye(size) - 1 / size

    def rho(alpha: float) -> float:
        return float(np.abs(np.linalg.eigvalsh(start - 2 * alpha * mean + alpha**2 * square)).max())

    found = minimize_scalar(rho, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
    return float(found.x), float(found.fun)
