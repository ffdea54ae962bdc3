"""Mixes of jobs that share a switch of eight ports."""

from __future__ import annotations

import numpy as np

from laconic.cluster.flows.traffic import FlowJob
from laconic.network.flow import Flow

GBIT = 125e6


def ring(hosts: list[int], nbytes: float) -> Flow:
    """An all-reduce of so many bytes: each host sends twice that, less a part, to the next."""
    sources = np.array(hosts)
    each = 2 * nbytes * (len(hosts) - 1) / len(hosts)
    return Flow(sources, np.roll(sources, -1), np.full(len(hosts), each), 1)


def heavy_tailed(seed: int, count: int = 60) -> list[FlowJob]:
    """Shuffles between drawn hosts whose sizes spread over four decades; larger ones are wider, as in data centres."""
    draws = np.random.default_rng(seed)
    found, now = [], 0.0
    for i in range(count):
        decade = float(draws.uniform(0, 4))
        most = 2 + round(1.5 * decade)
        senders, receivers = (draws.choice(8, int(draws.integers(1, most + 1)), replace=False) for _ in range(2))
        sources, destinations = np.repeat(senders, len(receivers)), np.tile(receivers, len(senders))
        nbytes = draws.dirichlet(np.full(len(sources), 5.0)) * 10 ** (5.7 + decade)
        found.append(FlowJob(f"coflow{i}", now, Flow(sources, destinations, nbytes, 1)))
        now += float(draws.exponential(0.15))
    return found


def training(
    seed: int,
    count: int = 10,
    spread: float = 50.0,
    iterations: tuple[int, int] = (5, 15),
    compute: tuple[float, float] = (0.3, 1.0),
) -> list[FlowJob]:
    """Jobs that all-reduce models of different sizes over all eight hosts, or six of them, and compute for a part of
    the time for which they would send alone."""
    draws = np.random.default_rng(seed)
    found = []
    for i in range(count):
        nbytes = 8e6 * spread ** (i / max(count - 1, 1))
        hosts = draws.permutation(8)[: int(draws.choice([6, 8]))].tolist()
        steps = int(draws.integers(iterations[0], iterations[1] + 1))
        seconds = float(draws.uniform(*compute)) * 2 * nbytes / (10 * GBIT)
        found.append(FlowJob(f"job{i}", float(draws.uniform(0, 0.5)), ring(hosts, nbytes), steps, seconds))
    return found
