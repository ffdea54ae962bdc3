"""Lifting: instructions, ours or another's, become the program that they carry out, which is proved as any other.

Instructions are carried out on names in place of values: what lies somewhere is a version of a rank's chunk. A message
that lands in the scratch buffer beside the rank's own chunk is a send only when it is added or copied.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from laconic.collective.dependence import VersionedSend, in_steps
from laconic.collective.instructions import Instructions
from laconic.collective.interpreter import carry_out
from laconic.collective.program import COPY, REDUCE, Program
from laconic.collective.thread_blocks import SENDS, Location
from laconic.errors import ProgramError


def lift(code: Instructions) -> Program:
    """Return the program that instructions carry out, with its sends in the earliest steps."""
    memory = _Names(code)
    carry_out(code, memory)
    memory.check_end()
    memory.check_ways()
    return Program(code.name, code.relation, in_steps(memory.sends))


@dataclass(frozen=True)
class _Version:
    """A version of what a rank holds of a chunk."""

    rank: int
    chunk: int
    number: int

    def __str__(self) -> str:
        return f"chunk {self.chunk} of rank {self.rank}"


class _Names:
    """A memory of names, which notes the sends that make each version."""

    def __init__(self, code: Instructions) -> None:
        self.code = code
        self.held = {(place[0], at): _Version(*place, 0) for place, at in code.layout.start.items()}
        self.latest: Counter[tuple[int, int]] = Counter()
        self.sends: list[VersionedSend] = []

    def read(self, rank: int, at: Location) -> _Version:
        if (rank, at) not in self.held:
            raise ProgramError(f"in {self.code.name} rank {rank} reads {at[0]}{at[1]}, where nothing is")
        return self.held[rank, at]

    def write(self, rank: int, at: Location, value: _Version) -> _Version:
        if value.rank != rank and not (at[0] == "s" and self._has_its_own(rank, at, value.chunk)):
            value = self._made(value, rank, COPY)
        self.held[rank, at] = value
        return value

    def add(self, rank: int, at: Location, value: _Version) -> _Version:
        here = self.read(rank, at)
        own, other = (here, value) if here.rank == rank else (value, here)
        if own.rank != rank or other.rank == rank or own.chunk != other.chunk:
            raise ProgramError(f"in {self.code.name} rank {rank} adds {value} to {here}, which is no step of a sum")
        if own.number != self.latest[rank, own.chunk]:
            raise ProgramError(f"in {self.code.name} rank {rank} adds to an old value of chunk {own.chunk}")
        return self._made(other, rank, REDUCE)

    def _has_its_own(self, rank: int, besides: Location, chunk: int) -> bool:
        return any(
            where == rank and at != besides and (value.rank, value.chunk) == (rank, chunk)
            for (where, at), value in self.held.items()
        )

    def _made(self, read: _Version, rank: int, op: int) -> _Version:
        self.latest[rank, read.chunk] += 1
        made = _Version(rank, read.chunk, self.latest[rank, read.chunk])
        self.sends.append(VersionedSend(read.rank, rank, read.chunk, op, read.number, made.number))
        return made

    def check_end(self) -> None:
        """Refuse instructions that leave something else than a rank's last version of a chunk where it should be."""
        for (rank, chunk), at in self.code.layout.end.items():
            value = self.read(rank, at)
            if value != _Version(rank, chunk, self.latest[rank, chunk]):
                raise ProgramError(
                    f"{self.code.name} leaves {value} in {at[0]}{at[1]} of rank {rank}, where its last value of chunk "
                    f"{chunk} should be"
                )

    def check_ways(self) -> None:
        """Refuse messages that are never used, and what a rank sends on from its scratch buffer although it has a value
        of its own: no program says that."""
        sent = Counter({(s.source, s.destination): 0 for s in self.sends})
        sent.update((s.source, s.destination) for s in self.sends)
        for rank, blocks in enumerate(self.code.blocks):
            for block in blocks:
                if block.send >= 0:
                    sent[rank, block.send] -= sum(step.kind in SENDS for step in block.instructions)
        for (source, to), difference in sent.items():
            if difference:
                raise ProgramError(
                    f"{self.code.name} sends from rank {source} to {to} what is not used there as it is, or what the "
                    "rank has of others beside its own, which cannot be written as a program"
                )
