"""A small language for collectives, as in MSCCLang: chunks are named and sent about, and a program is what was traced.

    def ring(trace: Trace) -> None:
        size = trace.relation.size
        for chunk in range(size):
            here = trace.chunk(chunk, chunk)
            for away in range(1, size):
                here = trace.chunk((chunk + away) % size, chunk).reduce(here)
            for away in range(size - 1):
                here = here.copy((chunk + away) % size)

    program = traced("my ring", all_reduce(4, 4), ring)

`copy` and `reduce` return a reference to what they have made. A reference to something that was overwritten since, a
chunk that is not there and a contribution that would be added twice are errors at once, in the line that is wrong; what
the collective still lacks is an error at the end. There is no current program: a trace is an object that is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laconic.collective.dependence import VersionedSend, in_steps
from laconic.collective.program import COPY, REDUCE, Program
from laconic.collective.relation import Relation
from laconic.errors import ProgramError
from laconic.registry import technique


@dataclass(frozen=True)
class ChunkReference:
    """What a rank holds of so many neighbouring chunks, as it was when this reference was made."""

    trace: Trace
    rank: int
    index: int
    count: int
    versions: tuple[int, ...]

    def copy(self, rank: int) -> ChunkReference:
        """Send this to a rank, where it replaces what was there, and return the reference to it there."""
        return self.trace._send(self, rank, COPY)

    def reduce(self, other: ChunkReference) -> ChunkReference:
        """Add to this what another rank holds of the same chunks, and return the reference to the sum, which is
        here."""
        if (self.index, self.count) != (other.index, other.count):
            raise ProgramError(f"{other} cannot be added to {self}: a sum is of the same chunks of two ranks")
        self.trace._check(self)
        return self.trace._send(other, self.rank, REDUCE)

    def __str__(self) -> str:
        what = f"chunk {self.index}" if self.count == 1 else f"chunks {self.index} to {self.index + self.count - 1}"
        return f"{what} of rank {self.rank}"


class Trace:
    """A program while it is written: what every rank holds, and the sends that led to it.

    - `relation`: what the collective is to do.
    - `name`: what the program is called.
    """

    def __init__(self, relation: Relation, name: str) -> None:
        self.relation, self.name = relation, name
        self._sends: list[VersionedSend] = []
        self._version: dict[tuple[int, int], int] = {}
        ranks, chunks = (part.tolist() for part in divmod(relation.before, relation.chunks))
        self._held = {place: {place[0]} for place in zip(ranks, chunks, strict=True)}

    def chunk(self, rank: int, index: int, count: int = 1) -> ChunkReference:
        """Return a reference to what a rank holds now.

        - `rank`: whose it is.
        - `index`: the first chunk.
        - `count`: how many neighbouring chunks.
        """
        self._check_rank(rank)
        if count < 1 or index < 0 or index + count > self.relation.chunks:
            raise ProgramError(
                f"{self.name} has chunks 0 to {self.relation.chunks - 1}, not {index} to {index + count - 1}"
            )
        versions = tuple(self._version.get((rank, one), 0) for one in range(index, index + count))
        reference = ChunkReference(self, rank, index, count, versions)
        self._check(reference)
        return reference

    def program(self) -> Program:
        """Return the program that was traced; one that does not do what its relation says is refused."""
        return Program(self.name, self.relation, in_steps(self._sends))

    def _check(self, reference: ChunkReference) -> None:
        if reference.trace is not self:
            raise ProgramError(f"{reference} belongs to {reference.trace.name}, another program than {self.name}")
        for one, version in enumerate(reference.versions, start=reference.index):
            if (reference.rank, one) not in self._held:
                raise ProgramError(f"in {self.name} rank {reference.rank} holds no chunk {one} at this point")
            if self._version.get((reference.rank, one), 0) != version:
                raise ProgramError(
                    f"in {self.name} chunk {one} of rank {reference.rank} was written after this reference to it was "
                    "made; use the reference that the write returned"
                )

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.relation.size:
            raise ProgramError(f"{self.name} has ranks 0 to {self.relation.size - 1}, not {rank}")

    def _send(self, source: ChunkReference, rank: int, op: int) -> ChunkReference:
        self._check(source)
        self._check_rank(rank)
        if rank == source.rank:
            raise ProgramError(f"in {self.name} rank {rank} already holds {source}")
        for one, version in enumerate(source.versions, start=source.index):
            there, sent = self._held.get((rank, one), set()), self._held[source.rank, one]
            if op == REDUCE and there & sent:
                twice = ", ".join(map(str, sorted(there & sent)))
                raise ProgramError(
                    f"in {self.name} rank {rank} would add the contribution of {twice} to chunk {one} twice"
                )
            self._held[rank, one] = there | sent if op == REDUCE else set(sent)
            made = self._version[rank, one] = self._version.get((rank, one), 0) + 1
            self._sends.append(VersionedSend(source.rank, rank, one, op, version, made))
        return self.chunk(rank, source.index, source.count)


@technique(
    "mscclang",
    axis="architecture",
    paper="Cowan, Maleki, Musuvathi, Saarikivi and Xiong, ASPLOS 2023",
    why_no_word="It is the language in which one writes a program, which is then carried out as any other.",
)
def traced(name: str, relation: Relation, write: Callable[[Trace], None]) -> Program:
    """Return the program that a function writes; one that does not do what its relation says is refused.

    Chunks are named by rank and index: there are no buffers, since a chunk of a `Program` keeps its index wherever it
    goes. The paper's directives are functions of programs: instances are `compose.beside`, channels and the fusion of
    instructions `lowering.lower`, and chunks that leave together for the same rank are one message of `execute`.

    - `name`: what the program is called.
    - `relation`: what the collective is to do.
    - `write`: is called once with the trace, on which it copies and adds chunks.
    """
    trace = Trace(relation, name)
    write(trace)
    return trace.program()
