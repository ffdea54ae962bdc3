"""The executor: a program carried out by messages between the members of a group, on either engine.

A rank goes through the steps in which it takes part. It hands over all sends and receives of a step at once and waits
for them, so that no two ranks can wait for each other for ever: whoever is in the earliest step can always go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    """Return what a rank does, step by step; chunks for the same rank are one message, in ascending order."""
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
        for _, both in sorted(found.items())
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
    if program.size != group.size:
        raise ProgramError(f"{program.name} is for {program.size} ranks, and the group has {group.size}")
    if program.relation.pieces != program.chunks:
        raise ProgramError(f"{program.name} gives ranks different chunks, not the parts of one vector")
    bounds = cuts(program.shares, flat.numel())
    for turn in turns(program, group.rank):
        sends = [(m, part) for m in turn.sends if (part := _joined(flat, bounds, m.chunks)).numel()]
        sent = {chunk for message, _ in sends for chunk in message.chunks}
        receives = [(m, part) for m in turn.receives if (part := _room(flat, bounds, m, sent)).numel()]
        handles = group.swap([(part, m.peer) for m, part in sends], [(part, m.peer) for m, part in receives], control)
        if handles:
            yield list(handles)
        for message, part in receives:
            _take(flat, bounds, message, part)
    return flat


def _run(chunks: tuple[int, ...]) -> bool:
    return chunks == tuple(range(chunks[0], chunks[0] + len(chunks)))


def _joined(flat: Tensor, bounds: list[int], chunks: tuple[int, ...]) -> Tensor:
    """Return chunks as one tensor: a view where they are neighbours."""
    if _run(chunks):
        return flat[bounds[chunks[0]] : bounds[chunks[-1] + 1]]
    return torch.cat([flat[bounds[c] : bounds[c + 1]] for c in chunks])


def _room(flat: Tensor, bounds: list[int], message: Message, sent: set[int]) -> Tensor:
    """Return where to receive a message: in its place, where it is copied there and nothing else is sent from it."""
    if not message.adds and _run(message.chunks) and sent.isdisjoint(message.chunks):
        return flat[bounds[message.chunks[0]] : bounds[message.chunks[-1] + 1]]
    return flat.new_empty(sum(bounds[c + 1] - bounds[c] for c in message.chunks))


def _take(flat: Tensor, bounds: list[int], message: Message, part: Tensor) -> None:
    """Add what was received, or copy it, unless it was received in its place."""
    if part.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr():
        return
    if _run(message.chunks):
        place = flat[bounds[message.chunks[0]] : bounds[message.chunks[-1] + 1]]
        place.add_(part) if message.adds else place.copy_(part)
        return
    start = 0
    for chunk in message.chunks:
        place = flat[bounds[chunk] : bounds[chunk + 1]]
        piece = part[start : start + place.numel()]
        place.add_(piece) if message.adds else place.copy_(piece)
        start += place.numel()
