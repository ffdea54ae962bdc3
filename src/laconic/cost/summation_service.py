"""A sum made by summation services on many hosts, on the fluid network: pushes and pulls in consecutive waves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.collective import flows
from laconic.network.fluid import Fluid
from laconic.network.network_tree import Network


@dataclass(frozen=True)
class Summed:
    """The time at which the last pull ended, and the bytes each host has sent and received."""

    seconds: float
    sent_bytes: NDArray[np.float64]
    received_bytes: NDArray[np.float64]


def summation(network: Network, push_bytes: ArrayLike, waves: int) -> Summed:
    """Push bytes [a][b] from host a to host b, and pull as many once they are summed, in so many equal waves.

    Pushes are sent in order, and so are pulls, each as soon as its wave is summed: both share the links.
    """
    blocks = np.asarray(push_bytes, dtype=float)
    hosts, ends = range(len(blocks)), [0.0]
    carried = np.zeros(len(network.capacities))
    fluid = Fluid(network.capacities, lane_width=1)

    def start(pushed: bool, wave: int, seconds: float) -> None:
        ended = partial(start, False, wave) if pushed else ends.append
        flow = flows.all_to_all((blocks if pushed else blocks.T) / waves)
        job = network.job("all_to_all", None, flow, hosts, ended, lane="push" if pushed else "pull")
        carried[job.links] += job.load_bytes
        fluid.add(job, seconds)

    for wave in range(waves):
        start(True, wave, 0.0)
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    own = carried[: 2 * network.size]
    return Summed(max(ends), own[::2], own[1::2])
