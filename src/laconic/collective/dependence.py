"""Steps by dependence: every send in the earliest step in which it finds what it reads.

What a rank holds of a chunk has versions: 0 is what was there before, and each write makes the next. A send is known by
the version that it reads and the one that it makes; steps follow from these alone, whatever steps there were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from laconic.collective.program import REDUCE, Program, Sends
from laconic.errors import ProgramError


@dataclass(frozen=True)
class VersionedSend:
    """A send that reads this version of the source's chunk and makes this version of the destination's."""

    source: int
    destination: int
    chunk: int
    op: int
    reads: int
    makes: int


def versioned(program: Program) -> list[VersionedSend]:
    """Return a program's sends in their order, with the versions that they read and make."""
    made: dict[tuple[int, int], int] = {}
    found, table, bounds = [], program.sends.table.tolist(), program.bounds.tolist()
    for begin, end in pairwise(bounds):
        before = dict(made)
        for _, source, destination, chunk, op in table[begin:end]:
            made[destination, chunk] = made.get((destination, chunk), 0) + 1
            reads = before.get((source, chunk), 0)
            found.append(VersionedSend(source, destination, chunk, op, reads, made[destination, chunk]))
    return found


def earliest(program: Program) -> Program:
    """Return the program with every send in the earliest step that its dependences allow."""
    return Program(program.name, program.relation, in_steps(versioned(program)), program.shares)


def in_steps(sends: Sequence[VersionedSend]) -> Sends:
    """Return sends in the earliest steps: after what they read is made, and not before the version that they overwrite
    has been read by all who do. Sums are made in the order of versions; contributions may arrive in one step."""
    after = _edges(sends)
    steps, waiting = [0] * len(sends), deque(range(len(sends)))
    while waiting:
        first = waiting.popleft()
        for second, distance in after[first]:
            if steps[first] + distance > steps[second]:
                steps[second] = steps[first] + distance
                if steps[second] >= len(sends):
                    raise ProgramError(f"{sends[second]} waits for itself: no order of steps gives it what it reads")
                waiting.append(second)
    rows = [(step, s.destination, s.chunk, s.makes, s.source, s.op) for step, s in zip(steps, sends, strict=True)]
    return Sends.of((step, source, to, chunk, op) for step, to, chunk, _, source, op in sorted(rows))


def _edges(sends: Sequence[VersionedSend]) -> list[list[tuple[int, int]]]:
    """Return for each send those that must be so many steps after it, at least."""
    maker = {(s.destination, s.chunk, s.makes): k for k, s in enumerate(sends)}
    after: list[list[tuple[int, int]]] = [[] for _ in sends]
    for k, s in enumerate(sends):
        read = maker.get((s.source, s.chunk, s.reads))
        if read is not None:
            after[read].append((k, 1))
        overwritten_by = maker.get((s.source, s.chunk, s.reads + 1))
        if overwritten_by is not None:
            after[k].append((overwritten_by, 0))
        last = maker.get((s.destination, s.chunk, s.makes - 1))
        if last is not None:
            both_add = s.op == REDUCE and sends[last].op == REDUCE
            after[last].append((k, 0 if both_add else 1))
    return after
