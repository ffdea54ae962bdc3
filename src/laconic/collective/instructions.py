"""`Instructions`: a collective as lists of instructions of thread blocks, checked when constructed.

Lists in which two thread blocks send on one connection, that end in a deadlock, or in which the order of two accesses
to one place is left to chance cannot be constructed. What they compute is proved by `lifting.lift`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from laconic.collective.layout import Layout
from laconic.collective.progress import SLOTS, progress
from laconic.collective.relation import Relation
from laconic.collective.thread_blocks import KINDS, RECEIVES, SENDS, Blocks, Connection, Location, Point
from laconic.errors import ProgramError


@dataclass(frozen=True, eq=False)
class Instructions:
    """What each rank does to carry out a collective.

    - `name`: what it is called.
    - `relation`: who holds which chunk before and after.
    - `layout`: where these chunks lie.
    - `blocks`: the thread blocks of each rank.
    - `slots`: how many messages a connection holds, at least.
    """

    name: str
    relation: Relation
    layout: Layout
    blocks: Blocks
    slots: int = SLOTS

    def __post_init__(self) -> None:
        if len(self.blocks) != self.relation.size:
            raise ProgramError(
                f"{self.name} is for {self.relation.size} ranks and has thread blocks of {len(self.blocks)}"
            )
        self._check_peers()
        self._check_order()

    @property
    def counts(self) -> list[Counter[str]]:
        """How many instructions of each kind each rank has."""
        return [Counter(step.kind for block in rank for step in block.instructions) for rank in self.blocks]

    @property
    def scratch(self) -> list[int]:
        """Of how many chunks each rank's scratch buffer consists."""
        return [
            max(
                (
                    at[1] + 1
                    for block in rank
                    for step in block.instructions
                    for at in step.reads + step.writes
                    if at[0] == "s"
                ),
                default=0,
            )
            for rank in self.blocks
        ]

    def _check_peers(self) -> None:
        balance: Counter[Connection] = Counter()
        ends: Counter[tuple[str, Connection]] = Counter()
        for rank, blocks in enumerate(self.blocks):
            for number, block in enumerate(blocks):
                out, into = (rank, block.send, block.channel), (block.receive, rank, block.channel)
                where = f"thread block {number} of rank {rank} of {self.name}"
                for peer, kinds, what in ((block.send, SENDS, "sends"), (block.receive, RECEIVES, "receives")):
                    count = sum(step.kind in kinds for step in block.instructions)
                    if not -1 <= peer < self.relation.size or peer == rank or (peer < 0 and count):
                        raise ProgramError(f"{where} {what} {count} times and has rank {peer} for it")
                    connection = out if kinds is SENDS else into
                    if peer >= 0:
                        ends[what, connection] += 1
                        balance[connection] += count if kinds is SENDS else -count
                if unknown := {step.kind for step in block.instructions} - KINDS:
                    raise ProgramError(
                        f"{where} has an unknown instruction {min(unknown)!r}; there are {sorted(KINDS)}"
                    )
        for (what, connection), count in ends.items():
            if count > 1:
                raise ProgramError(f"{count} thread blocks of {self.name} {what[:-1]} on one connection, {connection}")
        for (source, to, channel), count in balance.items():
            if count:
                side = "sent and not received" if count > 0 else "received and not sent"
                raise ProgramError(
                    f"{abs(count)} messages from rank {source} to {to} on channel {channel} of {self.name} are {side}"
                )

    def _check_order(self) -> None:
        """Refuse a deadlock, and two accesses to one place, one of them a write, of which neither waits for the
        other."""
        number: dict[Point, int] = {}
        before: dict[Point, int] = {}
        flying: dict[Connection, deque[int]] = {}
        written: dict[tuple[int, Location], Point] = {}
        read: dict[tuple[int, Location], list[Point]] = {}
        for point in progress(self.blocks, self.slots):
            rank, one, position = point
            block = self.blocks[rank][one]
            step = block.instructions[position]
            number[point] = len(number)
            mine = 1 << number[point]
            for other in ((rank, one, position - 1), *((rank, *wait) for wait in step.waits)):
                mine |= before.get(other, 0)
            if step.kind in RECEIVES:
                mine |= flying[block.receive, rank, block.channel].popleft()
            if step.kind in SENDS:
                flying.setdefault((rank, block.send, block.channel), deque()).append(mine)
            before[point] = mine
            for at in step.reads:
                self._check_after(point, mine, number, [written[rank, at]] if (rank, at) in written else [], at)
                read.setdefault((rank, at), []).append(point)
            for at in step.writes:
                others = [*read.pop((rank, at), []), *([written[rank, at]] if (rank, at) in written else [])]
                self._check_after(point, mine, number, others, at)
                written[rank, at] = point

    def _check_after(
        self, point: Point, mine: int, number: dict[Point, int], others: list[Point], at: Location
    ) -> None:
        for other in others:
            if not mine >> number[other] & 1:
                raise ProgramError(
                    f"in {self.name} instruction {point[2]} of thread block {point[1]} of rank {point[0]} does not "
                    f"wait for instruction {other[2]} of thread block {other[1]}, which uses {at[0]}{at[1]}, too"
                )
