"""What a program costs on a network: every rank has a clock, and the messages of a step share the links."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from laconic.collective.program import REDUCE, Program
from laconic.network.routes import Links

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ProgramPrice:
    """What a program takes.

    - `seconds`: until the last rank has ended.
    - `sent_bytes`: what the rank that sends most sends.
    - `busiest_seconds`: for how long the link that carries most is busy, which no order of sends can shorten.
    """

    seconds: float
    sent_bytes: float
    busiest_seconds: float


def price(
    program: Program, nbytes: float, links: Links, message_seconds: float = 0.0, add_seconds_per_byte: float = 0.0
) -> ProgramPrice:
    """Return what a program takes with vectors of so many bytes on this network.

    A message starts when both its ends have ended their step before, takes its latency, and then as long as the busiest
    link on its way needs for all that the step sends over it.

    - `nbytes`: of a rank's vector.
    - `links`: the network.
    - `message_seconds`: what a rank spends on each message beside the network, at either end.
    - `add_seconds_per_byte`: what a rank spends on adding each byte that it has received.
    """
    clocks, capacities = np.zeros(program.size), links.capacities
    carried = np.zeros(len(capacities))
    known: dict[bytes, tuple[NDArray[np.int64], NDArray[np.int64], Vector, Vector]] = {}
    sends = program.sends
    for begin, end in pairwise(program.bounds.tolist()):
        pairs = sends.source[begin:end] * program.size + sends.destination[begin:end]
        messages, which = np.unique(pairs, return_inverse=True)
        amounts = np.bincount(which, program.shares[sends.chunk[begin:end]]) * nbytes
        key = messages.tobytes() + amounts.tobytes()
        if key not in known:
            sources, destinations = np.divmod(messages, program.size)
            routes = links.routes(sources, destinations)
            loads = routes.load_bytes(amounts, len(capacities))
            busy = np.append(loads / capacities, 0.0)  # the last is for ways with fewer links
            spent = np.bincount(sources, minlength=program.size) + np.bincount(destinations, minlength=program.size)
            own = message_seconds * np.maximum(spent[sources], spent[destinations])
            known[key] = sources, destinations, routes.latency_seconds + busy[routes.links].max(axis=1) + own, loads
        sources, destinations, seconds, loads = known[key]
        ends = np.maximum(clocks[sources], clocks[destinations]) + seconds
        np.maximum.at(clocks, sources, ends)
        np.maximum.at(clocks, destinations, ends)
        if add_seconds_per_byte:
            adds = sends.op[begin:end] == REDUCE
            added = np.bincount(
                sends.destination[begin:end], program.shares[sends.chunk[begin:end]] * adds, program.size
            )
            clocks += added * nbytes * add_seconds_per_byte
        carried += loads
    busiest = float((carried / capacities).max()) if len(carried) else 0.0
    return ProgramPrice(max(float(clocks.max()), busiest), float(program.sent_shares.max()) * nbytes, busiest)
