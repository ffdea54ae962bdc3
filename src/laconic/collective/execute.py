"""The executor: a program carried out by messages between the members of a group, on either engine.

A rank goes through all steps, also those in which it takes no part. It hands over all sends and receives of a step at
once and waits for them, so that no two ranks can wait for each other for ever: whoever is in the earliest step can
always go on. Since every rank takes as many turns, that is also true of several programs in flight at once, which all
ranks advance in the same order, and their messages meet those that they should.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from torch import Tensor

from laconic.collective.chunk_memory import ChunkMemory, CodedChunks, Message, PlainChunks, cuts
from laconic.collective.program import REDUCE, Program
from laconic.errors import ProgramError
from laconic.worker import Coding, Communication, Group


@dataclass(frozen=True)
class Turn:
    """What one rank does in one step: it sends and receives these messages."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@lru_cache(maxsize=256)
def turns(program: Program, rank: int) -> tuple[Turn, ...]:
    """Return what a rank does in every step; chunks for the same rank are one message, in ascending order."""
    sends = program.sends
    mine = np.flatnonzero((sends.source == rank) | (sends.destination == rank))
    found: dict[int, tuple[dict[tuple[int, bool], list[int]], dict[tuple[int, bool], list[int]]]] = {}
    for row in mine.tolist():
        out, into = found.setdefault(int(sends.step[row]), ({}, {}))
        leaves = int(sends.source[row]) == rank
        peer = int(sends.destination[row] if leaves else sends.source[row])
        (out if leaves else into).setdefault((peer, bool(sends.op[row] == REDUCE)), []).append(int(sends.chunk[row]))
    return tuple(
        Turn(
            *(
                tuple(Message(peer, tuple(sorted(chunks)), adds) for (peer, adds), chunks in side.items())
                for side in both
            )
        )
        for both in (found.get(step, ({}, {})) for step in range(program.steps))
    )


def execute(
    program: Program, flat: Tensor, group: Group, control: float = 0.0, coding: Coding | None = None
) -> Communication[Tensor]:
    """Carry a program out on this member's flat vector, in place, and return it.

    - `program`: a collective in which every rank has a whole vector: chunk c is the c-th part of it.
    - `flat`: the vector, of which chunks that the program does not give this rank may be overwritten.
    - `control`: the share of the bytes that is no payload.
    - `coding`: how chunks are encoded in messages; the vector is float32 then.
    """
    if program.relation.pieces != program.chunks:
        raise ProgramError(
            f"{program.name} gives ranks different chunks, not the parts of one vector: use `execute_blocks`"
        )
    memory: ChunkMemory
    if coding is None:
        places = [slice(*ends) for ends in pairwise(cuts(program.shares, flat.numel()))]
        memory = PlainChunks(flat, places)
    else:
        memory = CodedChunks(flat, coding, program.shares)
    yield from _carry_out(program, memory, group, control)
    return flat


def execute_blocks(
    program: Program, given: Tensor, counts: Sequence[int], group: Group, control: float = 0.0
) -> Communication[Tensor]:
    """Carry a program out on the chunks that this member has before, and return those that it has after.

    Chunks that only pass through a member are kept in memory of its own; what is given stays as it is.

    - `program`: any collective, such as an all-to-all.
    - `given`: the chunks that this rank contributes, one after the other by their numbers, flat.
    - `counts`: the number of elements of every chunk, the same list at all members; they may differ, as in the vector
      collectives of MPI.
    - `control`: the share of the bytes that is no payload.
    """
    if len(counts) != program.chunks or min(counts) < 0:
        raise ProgramError(f"{program.name} has {program.chunks} chunks, each of which needs a count of elements")
    before, after, touched = holdings(program, group.rank)
    if given.numel() != sum(counts[c] for c in before):
        raise ProgramError(
            f"rank {group.rank} gives {given.numel()} elements to {program.name}; the counts of its chunks make "
            f"{sum(counts[c] for c in before)}"
        )
    ends = np.cumsum([0, *(counts[c] for c in touched)]).tolist()
    places = dict(zip(touched, map(slice, ends, ends[1:]), strict=False))
    memory, start = PlainChunks(given.new_empty(ends[-1]), places), 0
    for chunk in before:
        memory.vector[places[chunk]] = given[start : start + counts[chunk]]
        start += counts[chunk]
    yield from _carry_out(program, memory, group, control)
    return memory.joined(after) if after else given.new_empty(0)


@lru_cache(maxsize=256)
def holdings(program: Program, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the chunks that a rank has before, those that it has after, and all that it ever holds."""
    what, sends = program.relation, program.sends
    before, after = (held[held // what.chunks == rank] % what.chunks for held in (what.before, what.after))
    passing = sends.chunk[(sends.source == rank) | (sends.destination == rank)]
    touched = np.unique(np.concatenate([before, after, passing]))
    return tuple(before.tolist()), tuple(after.tolist()), tuple(touched.tolist())


def _carry_out(program: Program, memory: ChunkMemory, group: Group, control: float) -> Communication[None]:
    """Send and receive what the program says, step by step, from and to this member's chunks."""
    if program.size != group.size:
        raise ProgramError(f"{program.name} is for {program.size} ranks, and the group has {group.size}")
    for step, turn in enumerate(turns(program, group.rank)):
        sends = [(m, part) for m in turn.sends if (part := memory.read(m, step)).numel()]
        sent = {chunk for message, _ in sends for chunk in message.chunks}
        receives = [(m, part) for m in turn.receives if (part := memory.room(m, sent)).numel()]
        handles = group.swap([(part, m.peer) for m, part in sends], [(part, m.peer) for m, part in receives], control)
        yield list(handles)
        for message, part in receives:
            memory.take(message, part)
    memory.finish()
