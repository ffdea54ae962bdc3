"""A sum made by services on many machines, on the fluid: pushes and pulls in waves, one behind the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.collective import flows
from laconic.network.fluid import Fluid
from laconic.network.levels import Network


@dataclass(frozen=True)
class Summed:
    """When the last pull ended, and the bytes each machine has sent and received."""

    seconds: float
    sent_bytes: NDArray[np.float64]
    received_bytes: NDArray[np.float64]


def summation(network: Network, push_bytes: ArrayLike, waves: int) -> Summed:
    """Bytes [a][b] go from a to b, and as many come back once they are summed; a wave is an equal part of each.

    Pushes leave in order, and so do pulls, each as soon as its wave is summed: both share the links.
    """
    blocks = np.asarray(push_bytes, dtype=float)
    machines, ends = range(len(blocks)), [0.0]
    carried = np.zeros(len(network.capacities))
    fluid = Fluid(network.capacities, lane_width=1)

    def hand_over(pushed: bool, wave: int, seconds: float) -> None:
        ended = partial(hand_over, False, wave) if pushed else ends.append
        flow = flows.all_to_all((blocks if pushed else blocks.T) / waves)
        job = network.job("all_to_all", None, flow, machines, ended, lane="push" if pushed else "pull")
        carried[job.links] += job.load_bytes
        fluid.add(job, seconds)

    for wave in range(waves):
        hand_over(True, wave, 0.0)
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    own = carried[: 2 * network.size]
    return Summed(max(ends), own[::2], own[1::2])
