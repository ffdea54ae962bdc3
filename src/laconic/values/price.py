"""The cost of moving bytes: a start-up time and a time per byte, for each way to move them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.values.wire import ring_rounds, wire_factor


@dataclass(frozen=True)
class Price:
    """The time of a message as a linear function of its bytes; a message of no bytes takes no time."""

    startup_seconds: float
    seconds_per_byte: float

    def __post_init__(self) -> None:
        if min(self.startup_seconds, self.seconds_per_byte) < 0:
            raise LaconicError(f"moving bytes takes no negative time: {self}")

    def seconds(self, nbytes: float) -> float:
        return self.startup_seconds + self.seconds_per_byte * nbytes if nbytes else 0.0

    @property
    def halves(self) -> Price:
        """The price of a reduce-scatter or of an all-gather, which cost half an all-reduce each."""
        return Price(self.startup_seconds / 2, self.seconds_per_byte / 2)


def ring(workers: int, link: Price) -> Price:
    """Return the price of an all-reduce on a ring of N workers: each sends 2(N-1) times an N-th of the bytes (Patarasuk
    and Yuan, JPDC 2009)."""
    startups, sent = ring_rounds("all_reduce", workers), wire_factor("all_reduce", workers)
    return Price(startups * link.startup_seconds, sent * link.seconds_per_byte)


def tree(workers: int, link: Price) -> Price:
    """Return the price of an all-reduce up and down a double binary tree: fewer start-ups, as many bytes (Sanders et
    al., 2009)."""
    if workers == 1:
        return Price(0.0, 0.0)
    return Price(2 * math.log2(workers) * link.startup_seconds, 2 * link.seconds_per_byte)


def one_way(workers: int, servers: int, link: Price) -> Price:
    """Return the price of a push to, or a pull from, servers that share the bytes: the busier end's link decides."""
    return Price(link.startup_seconds, max(1.0, workers / servers) * link.seconds_per_byte)
