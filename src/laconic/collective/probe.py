"""Probes of a network that hides its shape: the times of messages between all pairs, without noise as far as possible.

Everything works on matrices, so that it does not matter whether a real network or a virtual one was probed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.network.routes import Links

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """What was measured between all pairs, the same in both directions.

    - `latency_seconds`: of the smallest message.
    - `bits_per_second`: the rate of a larger one, while all other ranks exchanged in pairs too.
    """

    latency_seconds: Matrix
    bits_per_second: Matrix

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.latency_seconds)

    def distance(self, nbytes: float = 1e5) -> Matrix:
        """Return how long a message of so many bytes takes between each pair."""
        found = self.latency_seconds + nbytes * 8 / self.bits_per_second
        np.fill_diagonal(found, 0.0)
        return found


def probe_rounds(size: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs that join every rank with every other once: p-1 of them, or p if p is odd."""
    ranks = [*range(size)] if size % 2 == 0 else [*range(size), -1]
    rounds = []
    for _ in range(len(ranks) - 1):
        pairs = [(ranks[k], ranks[-1 - k]) for k in range(len(ranks) // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        ranks = [ranks[0], ranks[-1], *ranks[1:-1]]
    return rounds


def probe_links(
    links: Links, noise: float = 0.0, seed: int = 0, repeats: int = 1, nbytes: float = 1e6
) -> tuple[Matrix, Matrix]:
    """Return the times, by repeats and both ends, of the smallest messages and of larger ones on a virtual network.

    The pairs of a round exchange at the same time in both directions and share links. What is measured is longer than
    that by a random share, of this mean.
    """
    draw, size = np.random.default_rng(seed), links.size
    small, large = np.zeros((2, repeats, size, size))
    for repeat in range(repeats):
        for pairs in probe_rounds(size):
            both = np.array([*pairs, *((b, a) for a, b in pairs)])
            routes = links.routes(both[:, 0], both[:, 1])
            busy = np.append(routes.load_bytes(np.full(len(both), nbytes), len(links.capacities)) / links.capacities, 0)
            for times, lasted in ((small, 0.0), (large, busy[routes.links].max(axis=1))):
                longer = 1 + draw.exponential(noise, len(both)) if noise else np.ones(len(both))
                times[repeat, both[:, 0], both[:, 1]] = (routes.latency_seconds + lasted) * longer
    return small, large


def denoised(small: Matrix, large: Matrix, nbytes: float = 1e6) -> Probe:
    """Return a probe from measured times: the shortest of all repeats and both directions, since noise only adds."""
    shortest = [np.minimum(found := times.min(axis=0), found.T) for times in (small, large)]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = nbytes * 8 / np.maximum(shortest[1] - shortest[0], 0.05 * shortest[1])
    np.fill_diagonal(rates, np.inf)
    return Probe(shortest[0], rates)
