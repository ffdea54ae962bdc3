"""Who holds which samples: partitions of a data set among clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import LaconicError

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shards:
    """The samples of every client: those of client k are `order[starts[k]:starts[k + 1]]`."""

    order: Integers
    starts: Integers

    def __post_init__(self) -> None:
        if (np.diff(self.starts) < 0).any() or self.starts[0] != 0 or self.starts[-1] != len(self.order):
            raise LaconicError("the shards of all clients follow one another and end with the last sample")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> Integers:
        return self.order[self.starts[client] : self.starts[client + 1]]

    @property
    def sizes(self) -> Integers:
        """The number of samples of every client."""
        return np.diff(self.starts)

    @classmethod
    def of(cls, parts: Sequence[ArrayLike]) -> Shards:
        """Return shards from the samples of each client."""
        arrays = [np.asarray(part, dtype=np.int64) for part in parts]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in arrays])]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, dtype=np.int64), *arrays]), starts)

    def without(self, samples: ArrayLike) -> Shards:
        """Return what is left to every client once these samples are deleted; a client that is left none is refused."""
        kept = [part[~np.isin(part, np.asarray(samples))] for part in map(self.__getitem__, range(len(self)))]
        empty = [client for client, part in enumerate(kept) if not len(part) and len(self[client])]
        if empty:
            raise LaconicError(f"client {empty[0]} would be left without a sample: leave the client out instead")
        return Shards.of(kept)

    def counts(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return how many samples of each label (a column) every client (a row) holds."""
        of_sample = np.asarray(labels, dtype=np.int64)[self.order]
        client = np.repeat(np.arange(len(self)), self.sizes)
        table = np.zeros((len(self), int(of_sample.max(initial=0)) + 1), dtype=np.int64)
        np.add.at(table, (client, of_sample), 1)
        return table


def alike(clients: int, samples_each: int) -> Shards:
    """Return clients that hold so many samples each, which are one and the same: for plans, where nobody looks at
    them."""
    starts = np.arange(clients + 1, dtype=np.int64) * samples_each
    return Shards(np.broadcast_to(np.zeros(1, dtype=np.int64), (int(starts[-1]),)), starts)


def iid(samples: int, clients: int, seed: int = 0) -> Shards:
    """Return equal random parts, whose sizes differ by at most one."""
    return Shards.of(np.array_split(_random(seed).permutation(samples), clients))


def by_quantity(samples: int, clients: int, concentration: float = 0.5, seed: int = 0) -> Shards:
    """Return random parts whose sizes are drawn from a Dirichlet distribution: the smaller its concentration, the more
    they differ. Nobody is without a sample."""
    draw = _random(seed)
    sizes = 1 + _whole(draw.dirichlet(np.full(clients, concentration)), samples - clients)
    return Shards.of(np.split(draw.permutation(samples), np.cumsum(sizes)[:-1]))


def dirichlet(labels: ArrayLike, clients: int, concentration: float = 0.5, seed: int = 0) -> Shards:
    """Return parts in which each label is divided among clients by shares that are drawn from a Dirichlet distribution
    (Hsu, Qi and Brown, 2019; Yurochkin et al., 2019). Who would have no sample gets one of whoever has most."""
    draw, values = _random(seed), np.asarray(labels)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(values):
        mine = draw.permutation(np.flatnonzero(values == label))
        sizes = _whole(draw.dirichlet(np.full(clients, concentration)), len(mine))
        for part, some in zip(parts, np.split(mine, np.cumsum(sizes)[:-1]), strict=True):
            part += some.tolist()
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return Shards.of(parts)


def by_label(labels: ArrayLike, clients: int, shards_each: int = 2, seed: int = 0) -> Shards:
    """Return parts of few labels: samples sorted by label are cut in `shards_each` pieces a client, which are dealt out
    at random (McMahan et al., 2017)."""
    draw, values = _random(seed), np.asarray(labels)
    shuffled = draw.permutation(len(values))
    pieces = np.array_split(shuffled[np.argsort(values[shuffled], kind="stable")], clients * shards_each)
    dealt = draw.permutation(len(pieces)).reshape(clients, shards_each)
    return Shards.of([np.concatenate([pieces[p] for p in mine]) for mine in dealt])


def natural(groups: ArrayLike) -> Shards:
    """Return a client for each group that the data names, such as the speaker of a line, in ascending order."""
    values = np.asarray(groups)
    return Shards.of([np.flatnonzero(values == group) for group in np.unique(values)])


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0x5A])


def _whole(shares: NDArray[np.float64], total: int) -> Integers:
    """Return whole numbers with this sum, in these shares."""
    ends = np.rint(np.cumsum(shares) / shares.sum() * total).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), dtype=np.int64)
