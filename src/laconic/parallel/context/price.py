"""What ring attention sends, and how long it takes on a network while blocks are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.network.network_tree import Network
from laconic.parallel.context.parts import Parts
from laconic.parallel.context.ring import PairSeconds

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RingSeconds:
    """The seconds of ring attention, each until the last device has ended, and of them those in which the device that
    computes most computes."""

    forward: float
    backward: float
    forward_computing: float
    backward_computing: float


def forward_bytes(parts: Parts, token_bytes: float) -> list[float]:
    """Return what each device sends forward: keys and values of all devices but the one after it.

    - `token_bytes`: of the keys and values of one token, of all heads and samples.
    """
    size = parts.size
    return [token_bytes * (parts.length - parts.tokens((d + 1) % size)) for d in range(size)]


def backward_bytes(parts: Parts, token_bytes: float, gradient_bytes: float | None = None) -> list[float]:
    """Return what each device sends backward: the same keys and values, and sums of gradients of all devices but its
    own.

    - `gradient_bytes`: of the gradients of one token's keys and values; default: as many as of these.
    """
    gradients = token_bytes if gradient_bytes is None else gradient_bytes
    again = forward_bytes(parts, token_bytes)
    return [nbytes + gradients * (parts.length - parts.tokens(d)) for d, nbytes in enumerate(again)]


def ring_seconds(
    network: Network,
    parts: Parts,
    token_bytes: float,
    pair_seconds: PairSeconds,
    *,
    causal: bool = False,
    gradient_bytes: float | None = None,
    ranks: Sequence[int] | None = None,
) -> RingSeconds:
    """Return what ring attention takes: in each step a device computes with the keys that it has, while it sends them
    on and receives others, and goes on when all three have ended.

    - `parts`: which device holds which tokens.
    - `token_bytes`, `gradient_bytes`: of the keys and values of one token, of all heads and samples, and of their
      gradients; default: as many.
    - `pair_seconds`: of computing one query with one key.
    - `ranks`: the devices on the network, in the order of the ring; default: the first ones.
    """
    size, gradients = parts.size, token_bytes if gradient_bytes is None else gradient_bytes
    devices = np.arange(size)
    tokens = np.array([parts.tokens(d) for d in range(size)], dtype=float)
    pairs = np.array([[parts.pairs(d, (d - t) % size, causal) for t in range(size)] for d in range(size)], dtype=float)
    latency, rate = _links(network, list(range(size)) if ranks is None else ranks)
    forward, backward = np.zeros(size), np.zeros(size)
    for step in range(size):
        held = tokens[(devices - step) % size] * token_bytes if step < size - 1 else np.zeros(size)
        forward = _after(forward, pairs[:, step] * pair_seconds.forward, held, latency, rate)
    for step in range(size + 1 if size > 1 else 1):
        held = tokens[(devices - step) % size] * token_bytes if step < size - 1 else np.zeros(size)
        sums = tokens[(devices - step + 1) % size] * gradients if step >= 2 else np.zeros(size)
        computing = pairs[:, step] * pair_seconds.backward if step < size else np.zeros(size)
        backward = _after(backward, computing, held + sums, latency, rate)
    work = float(pairs.sum(1).max())
    return RingSeconds(
        float(forward.max()), float(backward.max()), work * pair_seconds.forward, work * pair_seconds.backward
    )


def _links(network: Network, ranks: Sequence[int]) -> tuple[Vector, Vector]:
    """Return the latency and the bytes a second from each device to the next, while all of them send."""
    sources = np.asarray(ranks, dtype=np.int64)
    routes = network.routes(sources, np.roll(sources, -1))
    users = routes.load_bytes(np.ones(len(sources)), len(network.capacities))
    shares = np.append(network.capacities / np.maximum(users, 1), np.inf)  # the last is for ways with fewer links
    return routes.latency_seconds, shares[routes.links].min(axis=1)


def _after(clocks: Vector, computing: Vector, sent_bytes: Vector, latency: Vector, rate: Vector) -> Vector:
    """Return when each device ends a step, from when it began it; a message begins when both its ends have."""
    ends = clocks + computing
    if sent_bytes.any():
        arrivals = np.maximum(clocks, np.roll(clocks, -1)) + latency + sent_bytes / rate
        ends = np.maximum(ends, np.maximum(arrivals, np.roll(arrivals, 1)))
    return ends
