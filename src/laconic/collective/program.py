"""`Program`: a collective as data, proved when it is constructed.

A program is a list of sends, each in a numbered step: a rank sends a chunk to another rank, which copies it or adds it
to what it holds. Sends of one step read what was there before it. A program that does not do what its relation says,
in any order in which messages of a step may arrive, cannot be constructed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.collective.relation import Relation
from laconic.collective.sends import COPY, REDUCE, Integers, Send, Sends
from laconic.collective.verify import verify
from laconic.errors import ProgramError

__all__ = ["COPY", "REDUCE", "Program", "Send", "Sends"]


@dataclass(frozen=True, eq=False)
class Program:
    """A collective among ranks, as sends that are proved to do what the relation says.

    - `name`: what it is called.
    - `relation`: who holds which chunk before and after.
    - `sends`: the messages, by step.
    - `shares`: the size of each chunk as a share of a rank's vector; equal where not given.
    """

    name: str
    relation: Relation
    sends: Sends
    shares: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        shares = np.asarray(self.shares, dtype=float)
        object.__setattr__(self, "shares", shares if len(shares) else self.relation.shares)
        if len(self.shares) != self.relation.chunks or (self.shares < 0).any():
            raise ProgramError(f"{self.name} has {self.relation.chunks} chunks, each with a share that is not negative")
        verify(self.name, self.relation, self.sends)

    @classmethod
    def of(
        cls, name: str, relation: Relation, rows: Iterable[Send] | ArrayLike, shares: Sequence[float] = ()
    ) -> Program:
        """Return a program from rows (step, source, destination, chunk, op)."""
        return cls(name, relation, Sends.of(rows), np.asarray(shares, dtype=float))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.relation.size

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return self.relation.chunks

    @property
    def steps(self) -> int:
        """The number of steps."""
        return int(self.sends.step[-1]) + 1 if len(self.sends) else 0

    @cached_property
    def bounds(self) -> Integers:
        """Where the sends of each step begin, and where the last ends."""
        return np.searchsorted(self.sends.step, np.arange(self.steps + 1))

    @cached_property
    def sent_shares(self) -> NDArray[np.float64]:
        """How much each rank sends, as a multiple of its vector."""
        return np.bincount(self.sends.source, self.shares[self.sends.chunk], minlength=self.size).astype(float)

    @cached_property
    def added_shares(self) -> NDArray[np.float64]:
        """How much each rank adds, as a multiple of its vector."""
        added = self.shares[self.sends.chunk] * (self.sends.op == REDUCE)
        return np.bincount(self.sends.destination, added, minlength=self.size).astype(float)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Program)
            and self.relation.same_as(other.relation)
            and np.array_equal(self.shares, other.shares)
            and np.array_equal(self.sends.table, other.sends.table)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.size, self.chunks, len(self.sends)))

    def __repr__(self) -> str:
        return (
            f"Program({self.name}: {self.relation.name} of {self.size} ranks, {self.chunks} chunks, {self.steps} "
            f"steps, {len(self.sends)} sends)"
        )
