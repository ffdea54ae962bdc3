"""How often each worker should pull from each neighbour, by the times that this takes: NetMax's policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laconic.topology.matchings import Pair
from laconic.topology.mixing import Matrix, adjacency

_STRENGTHS, _TIMES = 10, 5  # how many of each are tried; of strengths, each 0.6 of the one before
_SPREAD = 1e-3  # how much an even distribution counts against iterations without a peer


@dataclass(frozen=True, eq=False)
class PeerPolicy:
    """With which probability a worker pulls from which peer, and how strongly.

    - `probabilities`: by worker and peer, where a worker that draws itself pulls from nobody.
    - `strength`: a worker that draws peer m moves by strength/p_im of the way towards it, so that every neighbour pulls
      equally in the mean.
    - `iteration_seconds`: the mean time between two iterations of a worker, the same for all.
    - `seconds`: the time after which models are predicted to have come a hundred times closer.
    """

    probabilities: Matrix
    strength: float
    iteration_seconds: float
    seconds: float

    @classmethod
    def uniform(cls, size: int, edges: Sequence[Pair]) -> PeerPolicy:
        """Return the policy before any time is known: all neighbours alike, and a pull of no more than half the way."""
        links = adjacency(size, edges)
        degrees = np.maximum(links.sum(axis=1, keepdims=True), 1)
        probabilities = links / degrees + np.diag((links.sum(axis=1) == 0).astype(float))
        return cls(probabilities, 0.5 / float(degrees.max()), math.nan, math.nan)


def second_eigenvalue(probabilities: Matrix, strength: float) -> float:
    """Return by how much the squared distance of models shrinks in an iteration of one of the workers, in the mean.

    It is the second largest eigenvalue of E[D'D], where D moves worker i by strength/p_im towards m, with i drawn
    evenly and m from the i-th row of the probabilities, on links in both directions.
    """
    size = len(probabilities)
    links = (probabilities > 0) & ~np.eye(size, dtype=bool)
    squares = np.divide(strength**2, probabilities, out=np.zeros_like(probabilities), where=links)
    weights = 2 * strength * links - (squares + squares.T)
    return float(np.linalg.eigvalsh(np.eye(size) - (np.diag(weights.sum(axis=1)) - weights) / size)[-2])


def best_policy(times: Matrix, edges: Sequence[Pair]) -> PeerPolicy:
    """Return the policy with which models are predicted to agree first.

    - `times`: the seconds of an iteration of worker i (row) with peer m (column); on the diagonal, without a peer.

    For a grid of strengths, and of iteration times that all workers can have in common, a linear programme finds
    probabilities that give each worker that mean time with the fewest iterations without a peer, none below twice the
    strength. Of those that differ in nothing else it takes the most even.
    """
    return _best_policy(len(times), tuple(map(float, np.maximum(times, 1e-9).flat)), tuple(edges))


@lru_cache(maxsize=64)
def _best_policy(size: int, flat: tuple[float, ...], edges: tuple[Pair, ...]) -> PeerPolicy:
    times, best = np.reshape(flat, (size, size)), PeerPolicy.uniform(size, edges)
    found = math.inf
    for strength, seconds in _grid(times, edges):
        probabilities = _probabilities(times, edges, strength, seconds)
        if probabilities is None:
            continue
        shrinks = second_eigenvalue(probabilities, strength)
        needed = seconds / size * math.log(0.01) / math.log(shrinks) if 0 < shrinks < 1 else math.inf
        if needed < found:
            found, best = needed, PeerPolicy(probabilities, strength, seconds, needed)
    return best


def _grid(times: Matrix, edges: Sequence[Pair]) -> Iterator[tuple[float, float]]:
    """Return strengths, and with each the iteration times to try that all workers can have."""
    links = adjacency(len(times), edges)
    most = 0.5 / max(int(links.sum(axis=1).max()), 1)
    for strength in most * 0.6 ** np.arange(_STRENGTHS):
        bounds = [_bounds(times[i], i, links[i], float(strength)) for i in range(len(times))]
        low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
        if low <= high * (1 + 1e-9):
            tried = np.linspace(low, max(low, high), _TIMES if high > low * (1 + 1e-9) else 1)
            yield from ((float(strength), float(seconds)) for seconds in tried)


def _bounds(times: Matrix, worker: int, links: NDArray[np.bool_], strength: float) -> tuple[float, float]:
    """Return the least and the most mean time that a worker's iterations can have."""
    ways = np.append(times[links], times[worker])
    fixed, left = 2 * strength * times[links].sum(), 1 - 2 * strength * int(links.sum())
    return float(fixed + left * ways.min()), float(fixed + left * ways.max())


def _probabilities(times: Matrix, edges: Sequence[Pair], strength: float, seconds: float) -> Matrix | None:
    """Return the probabilities with which every worker's iterations take so long in the mean; None: there are none."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    size, unit = len(times), max(float(times.max()), 1e-300)
    ways = [*((a, b) for a, b in edges), *((b, a) for a, b in edges), *((i, i) for i in range(size))]
    count, peers = len(ways), len(ways) - size
    row, col = np.array(ways).T
    number, most = np.arange(count), count + row  # the last unknowns bound the probabilities of each worker's peers
    equal = coo_array(
        (np.append(np.ones(count), times[row, col] / unit), (np.append(row, size + row), np.append(number, number))),
        shape=(2 * size, count + size),
    )
    below = coo_array(
        (np.repeat([1.0, -1.0], peers), (np.tile(number[:peers], 2), np.append(number[:peers], most[:peers]))),
        shape=(peers, count + size),
    )
    answer = linprog(
        [*np.zeros(peers), *np.ones(size), *np.full(size, _SPREAD)],
        A_eq=equal,
        b_eq=[*np.ones(size), *np.full(size, seconds / unit)],
        A_ub=below,
        b_ub=np.zeros(peers),
        bounds=[*[(2 * strength, 1.0)] * peers, *[(0.0, 1.0)] * (2 * size)],
    )
    if not answer.success:
        return None
    found = np.zeros_like(times)
    found[row, col] = answer.x[:count]
    return found
