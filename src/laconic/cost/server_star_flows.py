"""Slices of tensors between workers and servers on the fluid network: pushed when ready, pulled when summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from laconic.cost.server_star import ServerStar, Slice
from laconic.network.fluid import Fluid, Job
from laconic.network.network_tree import Network


def carry(pieces: Sequence[Slice], ready: Sequence[float], star: ServerStar) -> list[float]:
    """Return when each slice's sum has reached all workers; links serve the classes strictly, and fairly inside one.

    All workers push a slice as one job, and are sent its sum as one: workers are equal, and so are their shares.
    """
    network = Network.flat(star.workers + star.servers, star.bits_per_second)
    fluid = Fluid(network.capacities)
    arrived = [math.inf] * len(pieces)
    workers = np.arange(star.workers)

    def transfer(sources: NDArray[np.int64], destinations: NDArray[np.int64], number: int) -> Job:
        piece = pieces[number]
        links, load_bytes, latency = network.load(sources, destinations, np.full(star.workers, piece.nbytes))
        return Job(links, load_bytes, latency, partial(arrived.__setitem__, number), urgency=piece.urgency)

    def summed(number: int, seconds: float) -> None:
        fluid.add(transfer(servers[number], workers, number), seconds)

    servers = [np.full(star.workers, star.workers + piece.server) for piece in pieces]
    for number, piece in enumerate(pieces):
        push = transfer(workers, servers[number], number)
        push.finished = partial(summed, number)
        fluid.add(push, ready[piece.tensor])
    while (event := fluid.next_event()) < math.inf:
        fluid.advance(event)
    return arrived
