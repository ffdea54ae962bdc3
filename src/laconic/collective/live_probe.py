"""A probe of the network between the members of a group, by messages of the group itself, on either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.collective.price import price
from laconic.collective.probe import Probe, denoised, probe_links, probe_rounds
from laconic.collective.ragged import ReadByHost
from laconic.collective.rings import ring
from laconic.network.routes import Links
from laconic.worker import Awaited, Communication, Group, Handle

PROBE_BYTES = 1 << 18
"""Bytes of a message whose rate is measured."""

MOST_BYTES = 1 << 25
"""A member sends about so much in a probe at most; among many members the messages are shorter."""

REPEATS = 3
"""How often each time is measured; the shortest counts, since noise only adds."""

MOST_PEERS = 8
"""To how many others a small message is sent at once, to find what each costs beside the network."""

TICK_SECONDS = 1e-9
"""What a clock tells apart."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What a probe has found, the same at all members.

    - `table`: a row for each member: its times with every other of the smallest message and of a larger one, then those
      of small messages to several at once and of the transport's own all-reduce of one byte and of a larger vector.
    - `nbytes`: of the larger messages, and of the vector.
    """

    table: NDArray[np.float64]
    nbytes: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Measured) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[bytes, int]:
        return self.table.tobytes(), self.nbytes

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.table)

    @property
    def probe(self) -> Probe:
        """Latencies and rates between all pairs."""
        small, large = self._pairs(0), self._pairs(1)
        return denoised(small[None], np.maximum(large, small + TICK_SECONDS)[None], self.nbytes)

    @property
    def message_seconds(self) -> float:
        """What a member spends on each message beside the network: with several peers at once it has more of them."""
        offsets, ranks = _offsets(self.size), np.arange(self.size)
        if len(offsets) < 2:
            return 0.0
        alone = self._pairs(0)[ranks[:, None], (ranks[:, None] + offsets) % self.size].max(axis=1)
        return max(float(np.median(self.table[:, -3] - alone)) / (2 * (len(offsets) - 1)), 0.0)

    def backend_seconds(self, nbytes: float) -> float:
        """Return what the transport's own all-reduce of so many bytes takes, by a line through those measured."""
        small, large = self.table[:, -2].max(), self.table[:, -1].max()
        return float(small + max(large - small, 0.0) * nbytes / self.nbytes)

    def _pairs(self, kind: int) -> NDArray[np.float64]:
        return self.table[:, kind * self.size : (kind + 1) * self.size]


def probe_bytes(size: int) -> int:
    """Return the bytes of a larger message of a probe among so many members."""
    return max(min(PROBE_BYTES, MOST_BYTES // (REPEATS * max(size, 1))) // 8 * 8, 8)


def probe_group(group: Group, device: torch.device | None = None) -> Communication[Measured]:
    """Measure latencies and rates between all members in rounds of disjoint pairs, and return the same at all.

    Every member sends `REPEATS` + 1 messages of `probe_bytes` to each other one, and vectors of that size in
    all-reduces, beside small messages: about 1 MB to each other member among few, and 43 MB in all among many. All of
    it is counted as control. Of each kind the first is not timed: links that are limited by a bucket carry a burst at
    first. The pairs of a round begin together and load the network at the same time, so that links that they share
    show. Every member takes the same number of turns.
    """
    size, rank, nbytes = group.size, group.rank, probe_bytes(group.size)
    row = torch.zeros(2 * size + 3, dtype=torch.float64)
    small, large = (torch.zeros(count, dtype=torch.uint8, device=device) for count in (1, nbytes))

    def exchange(message: Tensor, to: Sequence[int], sources: Sequence[int]) -> list[Handle]:
        sends, receives = [(message, peer) for peer in to], [(torch.empty_like(message), peer) for peer in sources]
        return [ReadByHost(handle) for handle in group.swap(sends, receives, 1.0)]

    def all_reduce(vector: Tensor) -> Handle:
        return ReadByHost(group.all_reduce(vector.clone(), control=1.0))

    def shortest(start: Callable[[], Awaited]) -> Communication[float]:
        taken = []
        for _ in range(REPEATS):
            begin = group.clock_seconds()
            yield start()
            taken.append(group.clock_seconds() - begin)
        return min(taken)

    for pairs in probe_rounds(size):
        partner = [a + b - rank for a, b in pairs if rank in (a, b)]  # nobody where the number of members is odd
        yield group.barrier()
        for kind, message in enumerate((small, large)):
            yield exchange(message, partner, partner)  # whoever came later is here, and no bucket has a burst to spare
            seconds = yield from shortest(partial(exchange, message, partner, partner))
            row[[kind * size + other for other in partner]] = seconds
    to, sources = ([(rank + sign * offset) % size for offset in _offsets(size)] for sign in (1, -1))
    yield exchange(small, to, sources)
    row[-3] = yield from shortest(partial(exchange, small, to, sources))
    for place, vector in ((-2, small), (-1, large)):
        yield all_reduce(vector)
        row[place] = yield from shortest(partial(all_reduce, vector))
    table = yield ReadByHost(group.all_gather(row.to(device), control=1.0))
    return Measured(table.view(size, -1).cpu().numpy().astype(float), nbytes)


def measured_links(links: Links, message_seconds: float = 0.0) -> Measured:
    """Return what a probe of a known network would find, without the probe; the transport's all-reduce is a ring.

    - `links`: the network.
    - `message_seconds`: what a member would spend on each message beside the network.
    """
    size, nbytes = links.size, probe_bytes(links.size)
    small, large = (times[0] for times in probe_links(links, nbytes=nbytes))
    sums = [np.full((size, 1), price(ring(size), amount, links).seconds) for amount in (1, nbytes)]
    together = np.array([[small[rank, (rank + _offsets(size)) % size].max(initial=0.0)] for rank in range(size)])
    together += 2 * (len(_offsets(size)) - 1) * message_seconds
    return Measured(np.hstack([small, large, together, *sums]), nbytes)


def _offsets(size: int) -> NDArray[np.int64]:
    """Return how far away the peers are to which small messages are sent at once."""
    return np.arange(1, min(size - 1, MOST_PEERS) + 1)
