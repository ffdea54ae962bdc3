"""Thread blocks: what the interpreter inside a GPU's communication kernel runs, one instruction after another."""

from __future__ import annotations

from dataclasses import dataclass

Location = tuple[str, int]
"""A place in a rank's memory: buffer `i` (input), `o` (output) or `s` (scratch), and which chunk of it."""

SENDS = {"s", "rcs", "rrs", "rrcs"}
RECEIVES = {"r", "rrc", "rcs", "rrs", "rrcs"}
READS = {"s", "rrc", "rrs", "rrcs", "cpy", "re"}
WRITES = {"r", "rrc", "rcs", "rrcs", "cpy", "re"}
KINDS = SENDS | RECEIVES | READS | WRITES


@dataclass(frozen=True)
class Instruction:
    """One instruction, on one chunk.

    - `kind`: `s` send; `r` receive; `rrc` receive, add and keep; the fused `rcs` (receive, keep, send), `rrs` (receive,
      add, send without keeping) and `rrcs` (with); on the rank itself `cpy` copies and `re` adds.
    - `source`: the place of this rank that is read: sent, copied, or added to what is received.
    - `target`: the place of this rank that is written.
    - `waits`: instructions of other thread blocks of this rank that must have ended, as (thread block, position).
    """

    kind: str
    source: Location | None = None
    target: Location | None = None
    waits: tuple[tuple[int, int], ...] = ()

    @property
    def reads(self) -> tuple[Location, ...]:
        """The places of this rank that are read."""
        adds_to = (self.target,) if self.kind == "re" and self.target else ()
        return ((self.source,) if self.kind in READS and self.source else ()) + adds_to

    @property
    def writes(self) -> tuple[Location, ...]:
        """The places of this rank that are written."""
        return (self.target,) if self.kind in WRITES and self.target else ()


@dataclass(frozen=True)
class ThreadBlock:
    """Instructions in their order, with at most one rank to send to and one to receive from, both on one channel.

    - `send`, `receive`: these ranks, or -1.
    - `channel`: which of the parallel connections to them.
    """

    send: int
    receive: int
    channel: int
    instructions: tuple[Instruction, ...]


Blocks = tuple[tuple[ThreadBlock, ...], ...]
"""The thread blocks of each rank."""
Connection = tuple[int, int, int]
"""From which rank, to which, on which channel."""
Point = tuple[int, int, int]
"""An instruction, by its rank, its thread block and its position there."""
