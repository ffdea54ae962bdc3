"""The interpreter of instructions: it carries them out on values, in any order of progress that is possible."""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar

import numpy as np

from laconic.collective.instructions import Instructions
from laconic.collective.layout import Place
from laconic.collective.progress import progress
from laconic.collective.thread_blocks import RECEIVES, SENDS, Connection, Instruction, Location
from laconic.errors import ProgramError

V = TypeVar("V")


class Memory(Protocol[V]):
    """What ranks hold, as values of any kind."""

    def read(self, rank: int, at: Location) -> V:
        """Return what is at a place."""

    def write(self, rank: int, at: Location, value: V) -> V:
        """Put a value to a place, and return it as the rank has it then."""

    def add(self, rank: int, at: Location, value: V) -> V:
        """Return the sum of what is at a place and a value."""


def carry_out(code: Instructions, memory: Memory[V], draw: np.random.Generator | None = None) -> None:
    """Carry instructions out.

    - `code`: the instructions.
    - `memory`: what ranks hold before; it holds the result after.
    - `draw`: draws which thread block goes on next.
    """
    flying: dict[Connection, deque[V]] = {}
    for rank, one, position in progress(code.blocks, code.slots, draw):
        block = code.blocks[rank][one]
        step = block.instructions[position]
        came = flying[block.receive, rank, block.channel].popleft() if step.kind in RECEIVES else None
        value = _value(step, rank, memory, came)
        if step.kind in SENDS:
            flying.setdefault((rank, block.send, block.channel), deque()).append(value)


def _value(step: Instruction, rank: int, memory: Memory[V], came: V | None) -> V:
    """Do what one instruction does to the memory, and return the value that it has got."""
    if came is None:
        assert step.source is not None
        value = memory.read(rank, step.source)
        if step.kind == "re" and step.target is not None:
            value = memory.add(rank, step.target, value)
    elif step.source is not None:
        value = memory.add(rank, step.source, came)
    else:
        value = came
    return memory.write(rank, step.target, value) if step.target is not None else value


class _Arrays:
    """A memory of arrays; a place to which nothing was written cannot be read."""

    def __init__(self, held: dict[tuple[int, Location], np.ndarray]) -> None:
        self.held = held

    def read(self, rank: int, at: Location) -> np.ndarray:
        if (rank, at) not in self.held:
            raise ProgramError(f"rank {rank} reads {at[0]}{at[1]}, where nothing is")
        return self.held[rank, at]

    def write(self, rank: int, at: Location, value: np.ndarray) -> np.ndarray:
        self.held[rank, at] = value
        return value

    def add(self, rank: int, at: Location, value: np.ndarray) -> np.ndarray:
        total: np.ndarray = self.read(rank, at) + value
        return total


def interpret(
    code: Instructions, inputs: dict[Place, np.ndarray], draw: np.random.Generator | None = None
) -> dict[Place, np.ndarray]:
    """Return what ranks hold after, by rank and chunk.

    - `code`: the instructions.
    - `inputs`: what each rank holds before of each chunk that the relation gives it.
    - `draw`: draws which thread block goes on next, so that orders of progress can be tried at random.
    """
    memory = _Arrays({(place[0], at): inputs[place] for place, at in code.layout.start.items()})
    carry_out(code, memory, draw)
    return {place: memory.read(place[0], at) for place, at in code.layout.end.items()}
