"""Collectives as relations: which rank holds which chunk before, and which rank must hold its sum after.

This is the specification that a `Program` is verified against. A chunk is *contributed* by the ranks that hold it
before; those that hold it after hold the sum of all contributions. All collectives of MPI are of this form: a broadcast
is the sum of one contribution at every rank, an all-reduce the sum of all, an all-to-all has a chunk for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Relation:
    """What a collective does, among `size` ranks with so many `chunks`.

    - `before`, `after`: places that hold a chunk, as `rank * chunks + chunk`, ascending.
    - `pieces`: of how many equal chunks a rank's vector consists, which tells the bytes of a chunk.
    """

    name: str
    size: int
    chunks: int
    before: Places
    after: Places
    pieces: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.chunks < 1:
            raise LaconicError(f"a collective has at least one rank and one chunk, not {self.size} and {self.chunks}")

    @property
    def shares(self) -> NDArray[np.float64]:
        """The size of each chunk, as a share of a rank's vector, where all are equal."""
        return np.full(self.chunks, 1 / self.pieces)

    @property
    def contributors(self) -> NDArray[np.int64]:
        """How many ranks contribute to each chunk."""
        return np.bincount(self.before % self.chunks, minlength=self.chunks)

    def same_as(self, other: Relation) -> bool:
        """Whether both say the same of the same chunks."""
        return (
            (self.size, self.chunks) == (other.size, other.chunks)
            and np.array_equal(self.before, other.before)
            and np.array_equal(self.after, other.after)
        )

    def cut(self, parts: int) -> Relation:
        """Return the same relation with every chunk cut into so many; part j of chunk c is chunk `c * parts + j`."""

        def places(whole: Places) -> Places:
            rank, chunk = np.divmod(whole, self.chunks)
            first = (rank * self.chunks + chunk) * parts
            return np.sort((first[:, None] + np.arange(parts)).ravel())

        return Relation(
            self.name, self.size, self.chunks * parts, places(self.before), places(self.after), self.pieces * parts
        )


def _everywhere(size: int, chunks: int) -> Places:
    return np.arange(size * chunks)


def _at(rank: int, chunks: int) -> Places:
    return rank * chunks + np.arange(chunks)


def _own(size: int, chunks: int) -> Places:
    """Each rank holds its own block of neighbouring chunks."""
    if chunks % size:
        raise LaconicError(f"{chunks} chunks cannot be dealt evenly to {size} ranks")
    chunk = np.arange(chunks)
    return np.sort(chunk // (chunks // size) * chunks + chunk)


def all_reduce(size: int, chunks: int) -> Relation:
    """Every rank ends with the sum of all ranks' vectors."""
    return Relation("all_reduce", size, chunks, _everywhere(size, chunks), _everywhere(size, chunks), chunks)


def reduce_scatter(size: int, chunks: int) -> Relation:
    """Rank i ends with the sum of block i."""
    return Relation("reduce_scatter", size, chunks, _everywhere(size, chunks), _own(size, chunks), chunks)


def all_gather(size: int, chunks: int) -> Relation:
    """Block i, which rank i holds, ends at every rank; the vector is the one that all end with."""
    return Relation("all_gather", size, chunks, _own(size, chunks), _everywhere(size, chunks), chunks)


def broadcast(size: int, chunks: int, root: int = 0) -> Relation:
    """The root's vector ends at every rank."""
    return Relation("broadcast", size, chunks, _at(root, chunks), _everywhere(size, chunks), chunks)


def reduce(size: int, chunks: int, root: int = 0) -> Relation:
    """The root ends with the sum of all ranks' vectors."""
    return Relation("reduce", size, chunks, _everywhere(size, chunks), _at(root, chunks), chunks)


def scatter(size: int, chunks: int, root: int = 0) -> Relation:
    """Block i of the root's vector ends at rank i."""
    return Relation("scatter", size, chunks, _at(root, chunks), _own(size, chunks), chunks)


def gather(size: int, chunks: int, root: int = 0) -> Relation:
    """Block i, which rank i holds, ends at the root."""
    return Relation("gather", size, chunks, _own(size, chunks), _at(root, chunks), chunks)


def all_to_all(size: int, chunks: int | None = None) -> Relation:
    """Block j of rank i ends as block i of rank j; this block is chunk `i * size + j`, or several neighbouring ones."""
    total = size * size if chunks is None else chunks
    if total % (size * size):
        raise LaconicError(f"an all-to-all among {size} ranks has a multiple of {size * size} chunks, not {total}")
    chunk = np.arange(total)
    source, destination = np.divmod(chunk // (total // size**2), size)
    return Relation(
        "all_to_all",
        size,
        total,
        np.sort(source * total + chunk),
        np.sort(destination * total + chunk),
        total // size,
    )


RELATIONS = {
    relation.__name__: relation
    for relation in (all_reduce, reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all)
}
"""The collectives by name, each a function of the number of ranks and of chunks."""
