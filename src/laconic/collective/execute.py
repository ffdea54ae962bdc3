"""The executor: a program carried out by messages between the members of a group, on either engine.

A rank goes through all steps, also those in which it takes no part. It hands over all sends and receives of a step at
once and waits for them, so that no two ranks can wait for each other for ever: whoever is in the earliest step can
always go on. Since every rank takes as many turns, that is also true of several programs in flight at once, which all
ranks advance in the same order, and their messages meet those that they should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from laconic.collective.program import REDUCE, Program
from laconic.errors import ProgramError
from laconic.worker import Communication, Group


@dataclass(frozen=True)
class Message:
    """Chunks that one rank sends to another in one step, to be copied or to be added."""

    peer: int
    chunks: tuple[int, ...]
    adds: bool


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


def cuts(shares: Sequence[float] | np.ndarray, numel: int) -> list[int]:
    """Return where each chunk of a vector of so many elements begins, and where the last ends. Equal chunks differ by
    at most one element."""
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * numel).astype(int)
    return [0, *ends.tolist()]


def execute(program: Program, flat: Tensor, group: Group, control: float = 0.0) -> Communication[Tensor]:
    """Carry a program out on this member's flat vector, in place, and return it.

    - `program`: a collective in which every rank has a whole vector: chunk c is the c-th part of it.
    - `flat`: the vector, of which chunks that the program does not give this rank may be overwritten.
    - `control`: the share of the bytes that is no payload.
    """
    if program.relation.pieces != program.chunks:
        raise ProgramError(
            f"{program.name} gives ranks different chunks, not the parts of one vector: use `execute_blocks`"
        )
    places = [slice(*ends) for ends in pairwise(cuts(program.shares, flat.numel()))]
    yield from _carry_out(program, flat, places, group, control)
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
    memory, start = given.new_empty(ends[-1]), 0
    for chunk in before:
        memory[places[chunk]] = given[start : start + counts[chunk]]
        start += counts[chunk]
    yield from _carry_out(program, memory, places, group, control)
    return _joined(memory, places, after) if after else given.new_empty(0)


@lru_cache(maxsize=256)
def holdings(program: Program, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the chunks that a rank has before, those that it has after, and all that it ever holds."""
    what, sends = program.relation, program.sends
    before, after = (held[held // what.chunks == rank] % what.chunks for held in (what.before, what.after))
    passing = sends.chunk[(sends.source == rank) | (sends.destination == rank)]
    touched = np.unique(np.concatenate([before, after, passing]))
    return tuple(before.tolist()), tuple(after.tolist()), tuple(touched.tolist())


Places = Sequence[slice] | Mapping[int, slice]
"""Where each chunk lies in a member's memory."""


def _carry_out(program: Program, memory: Tensor, places: Places, group: Group, control: float) -> Communication[None]:
    """Send and receive what the program says, step by step, from and to these places of the memory."""
    if program.size != group.size:
        raise ProgramError(f"{program.name} is for {program.size} ranks, and the group has {group.size}")
    for turn in turns(program, group.rank):
        sends = [(m, part) for m in turn.sends if (part := _joined(memory, places, m.chunks)).numel()]
        sent = {chunk for message, _ in sends for chunk in message.chunks}
        receives = [(m, part) for m in turn.receives if (part := _room(memory, places, m, sent)).numel()]
        handles = group.swap([(part, m.peer) for m, part in sends], [(part, m.peer) for m, part in receives], control)
        yield list(handles)
        for message, part in receives:
            _take(memory, places, message, part)


def _span(places: Places, chunks: Sequence[int]) -> slice | None:
    """Return where chunks lie that are neighbours in this order, or none."""
    if all(places[a].stop == places[b].start for a, b in pairwise(chunks)):
        return slice(places[chunks[0]].start, places[chunks[-1]].stop)
    return None


def _joined(memory: Tensor, places: Places, chunks: Sequence[int]) -> Tensor:
    """Return chunks as one tensor: a view where they are neighbours."""
    span = _span(places, chunks)
    return memory[span] if span else torch.cat([memory[places[c]] for c in chunks])


def _room(memory: Tensor, places: Places, message: Message, sent: set[int]) -> Tensor:
    """Return where to receive a message: in its place, where it is copied there and nothing else is sent from it."""
    span = _span(places, message.chunks)
    if span and not message.adds and sent.isdisjoint(message.chunks):
        return memory[span]
    return memory.new_empty(sum(places[c].stop - places[c].start for c in message.chunks))


def _take(memory: Tensor, places: Places, message: Message, part: Tensor) -> None:
    """Add what was received, or copy it, unless it was received in its place."""
    if part.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr():
        return
    span, start = _span(places, message.chunks), 0
    for place in [span] if span else [places[c] for c in message.chunks]:
        length = place.stop - place.start
        piece = part[start : start + length]
        memory[place].add_(piece) if message.adds else memory[place].copy_(piece)
        start += length
