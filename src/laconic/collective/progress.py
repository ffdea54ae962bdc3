"""How thread blocks go on: each instruction when what it waits for has ended, its message is there and a slot is free.

A thread block goes on by itself alone, no instruction takes away what another waits for, and messages of a connection
arrive in order. Therefore all orders of progress end in the same state: where one order gets stuck, all do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laconic.collective.thread_blocks import RECEIVES, SENDS, Blocks, Connection, Point
from laconic.errors import ProgramError

SLOTS = 2
"""How many chunks a connection holds between its ends: NCCL's buffer has 8 steps, of which a chunk takes 4."""


class Deadlock(ProgramError):
    """Thread blocks wait for each other for ever. `full` are the fused instructions whose message has come and that
    find no slot for what they send on."""

    def __init__(self, message: str, full: tuple[Point, ...]) -> None:
        super().__init__(message)
        self.full = full


def progress(blocks: Blocks, slots: int = SLOTS, draw: np.random.Generator | None = None) -> Iterator[Point]:
    """Yield instructions in an order in which they can be carried out, all of them, or raise `Deadlock`.

    - `slots`: how many messages a connection holds.
    - `draw`: draws which thread block goes on next, and for how long; without it each goes as far as it can.
    """
    at = {(rank, one): 0 for rank, several in enumerate(blocks) for one in range(len(several))}
    held: dict[Connection, int] = {}
    while left := [one for one, position in at.items() if position < len(blocks[one[0]][one[1]].instructions)]:
        moved = False
        for rank, one in (left[k] for k in draw.permutation(len(left))) if draw else left:
            block = blocks[rank][one]
            burst = int(draw.integers(1, 4)) if draw else len(block.instructions)
            for position in range(at[rank, one], min(at[rank, one] + burst, len(block.instructions))):
                step = block.instructions[position]
                into, out = (block.receive, rank, block.channel), (rank, block.send, block.channel)
                if (
                    any(at.get((rank, other), 0) <= done for other, done in step.waits)
                    or (step.kind in RECEIVES and not held.get(into))
                    or (step.kind in SENDS and held.get(out, 0) >= slots)
                ):
                    break
                held[into] = held.get(into, 0) - (step.kind in RECEIVES)
                held[out] = held.get(out, 0) + (step.kind in SENDS)
                at[rank, one], moved = position + 1, True
                yield rank, one, position
        if not moved:
            raise _stuck(blocks, at, held, left)


def _stuck(
    blocks: Blocks, at: dict[tuple[int, int], int], held: dict[Connection, int], left: list[tuple[int, int]]
) -> Deadlock:
    full = []
    for rank, one in left:
        block = blocks[rank][one]
        step = block.instructions[at[rank, one]]
        waits = any(at.get((rank, other), 0) <= done for other, done in step.waits)
        if step.kind in RECEIVES & SENDS and not waits and held.get((block.receive, rank, block.channel)):
            full.append((rank, one, at[rank, one]))
    rank, one = left[0]
    return Deadlock(
        f"{len(left)} thread blocks wait for each other for ever: thread block {one} of rank {rank} is the first, at "
        f"its instruction {at[rank, one]}, {blocks[rank][one].instructions[at[rank, one]]}",
        tuple(full),
    )
