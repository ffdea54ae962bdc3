"""Lowering: a program's sends become instructions of thread blocks, and a receive and the send that follows are fused.

Sends of a pair of ranks keep the program's order. Instructions are put into an order in which all of them can be
carried out with so few slots as there are, and each thread block keeps that order, so that none waits for ever; what
another thread block must have done before is an explicit wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from laconic.collective.dependence import VersionedSend, versioned
from laconic.collective.instructions import Instructions
from laconic.collective.layout import Layout, Place, layout
from laconic.collective.program import REDUCE, Program
from laconic.collective.progress import SLOTS, Deadlock
from laconic.collective.thread_blocks import Blocks, Instruction, Location, ThreadBlock

Node = tuple[str, int]
"""`s` or `r` and the number of a send, or `c` and a chunk that a rank copies for itself."""


def lower(program: Program, fuse: bool = True, slots: int = SLOTS) -> Instructions:
    """Return a program as instructions.

    - `program`: the program.
    - `fuse`: whether a receive and the send after it are one instruction, where they can be.
    - `slots`: how many messages a connection holds.
    """
    return _Lowering(program, slots).instructions(fuse)


@dataclass(frozen=True)
class _Block:
    """A thread block while it is filled."""

    rank: int
    send: int
    receive: int
    channel: int


class _Lowering:
    def __init__(self, program: Program, slots: int) -> None:
        self.program, self.slots = program, slots
        self.sends = versioned(program)
        self.steps = program.sends.step.tolist()
        self.maker = {(s.destination, s.chunk, s.makes): k for k, s in enumerate(self.sends)}
        self.readers: dict[tuple[int, int, int], list[int]] = {}
        for k, s in enumerate(self.sends):
            self.readers.setdefault((s.source, s.chunk, s.reads), []).append(k)
        self.layout = layout(program.relation)
        self.homes = _homes(self.layout, self.sends)
        self.order, self.channels = self._ordered()

    def instructions(self, fuse: bool) -> Instructions:
        """Return the instructions; what stands in each other's way when fused is taken apart again."""
        of = self._assigned()
        whole = self._fusible(of) if fuse else {}
        while True:
            try:
                name, what = self.program.name, self.program.relation
                blocks, starts = self._built(of, whole)
                return Instructions(name, what, self.layout, blocks, self.slots)
            except Deadlock as deadlock:
                if not deadlock.full:
                    raise
                whole = {r: s for r, s in whole.items() if starts[r] != deadlock.full[0]}

    def _needs(self, node: Node) -> list[Node]:
        """Return the instructions of the same rank that must have ended before."""
        what, k = node
        if what == "c":
            return []
        s = self.sends[k]
        if what == "s":
            made = self.maker.get((s.source, s.chunk, s.reads))
            return [] if made is None else [("r", made)]
        last = (s.destination, s.chunk, s.makes - 1)
        found: list[Node] = [("s", reader) for reader in self.readers.get(last, ())]
        return [*found, ("r", self.maker[last])] if last in self.maker else found

    def _ordered(self) -> tuple[list[Node], list[int]]:
        """Return an order of all sends and receives that the slots allow, and the channel of each send.

        The earliest steps go first, but what was received is sent on at once where it can be. A send that finds its
        connection full while nobody can go on gets another channel.
        """
        pairs: dict[tuple[int, int], list[int]] = {}
        for k in reversed(range(len(self.sends))):
            pairs.setdefault((self.sends[k].source, self.sends[k].destination), []).append(k)
        channels, flying = [0] * len(self.sends), defaultdict[tuple[int, int, int], deque[int]](deque)
        order: dict[Node, None] = {}

        def connection(k: int) -> deque[int]:
            return flying[self.sends[k].source, self.sends[k].destination, channels[k]]

        def is_next(k: int) -> bool:
            rest = pairs[self.sends[k].source, self.sends[k].destination]
            return bool(rest) and rest[-1] == k and all(need in order for need in self._needs(("s", k)))

        def send(k: int) -> bool:
            if len(connection(k)) >= self.slots:
                return False
            connection(k).append(pairs[self.sends[k].source, self.sends[k].destination].pop())
            order["s", k] = None
            return True

        def receive(k: int) -> None:
            order["r", connection(k).popleft()] = None
            s = self.sends[k]
            for onwards in self.readers.get((s.destination, s.chunk, s.makes), ()):
                if is_next(onwards) and send(onwards):
                    return

        while True:
            sends = [(self.steps[rest[-1]], 0, rest[-1]) for rest in pairs.values() if rest and is_next(rest[-1])]
            heads = [queue[0] for queue in flying.values() if queue]
            came = [(self.steps[k], 1, k) for k in heads if all(need in order for need in self._needs(("r", k)))]
            if not sends and not came:
                return list(order), channels
            before = len(order)
            for _, receives, k in sorted(sends + came):
                if receives:
                    receive(k)
                elif is_next(k):
                    send(k)
            if len(order) == before:
                _, _, k = min(sends)
                while len(connection(k)) >= self.slots:
                    channels[k] += 1

    def _assigned(self) -> dict[Node, _Block]:
        """Return the thread block of every instruction. A connection to receive from and one to send to share a thread
        block where chunks go on from one to the other; those with most such chunks are paired first."""
        forwards: Counter[tuple[int, int, int, int]] = Counter()
        for k, s in enumerate(self.sends):
            made = self.maker.get((s.source, s.chunk, s.reads))
            if made is not None and self.channels[made] == self.channels[k]:
                forwards[s.source, self.sends[made].source, s.destination, self.channels[k]] += 1
        sending, receiving = {}, {}
        for (rank, source, to, channel), _ in sorted(forwards.items(), key=lambda one: (-one[1], one[0])):
            if (rank, to, channel) not in sending and (rank, source, channel) not in receiving:
                both = _Block(rank, to, source, channel)
                sending[rank, to, channel] = receiving[rank, source, channel] = both
        found: dict[Node, _Block] = {}
        for k, s in enumerate(self.sends):
            channel = self.channels[k]
            alone = _Block(s.source, s.destination, -1, channel), _Block(s.destination, -1, s.source, channel)
            found["s", k] = sending.get((s.source, s.destination, channel), alone[0])
            found["r", k] = receiving.get((s.destination, s.source, channel), alone[1])
        for rank, chunk in self._own_copies():
            found["c", chunk] = _Block(rank, -1, -1, 0)
        return found

    def _own_copies(self) -> list[Place]:
        """Return what a rank copies from its input to its output."""
        start, end = self.layout.start, self.layout.end
        return [place for place in end if place in start and start[place] != end[place]]

    def _fusible(self, of: dict[Node, _Block]) -> dict[int, int]:
        """Return for each receive the send that follows it in its thread block, where that sends what was received."""
        last: dict[_Block, Node] = {}
        found = {}
        for node in self.order:
            before = last.get(of[node])
            if before and before[0] == "r" and node[0] == "s" and self._needs(node) == [before]:
                found[before[1]] = node[1]
            last[of[node]] = node
        return found

    def _built(self, of: dict[Node, _Block], whole: dict[int, int]) -> tuple[Blocks, dict[int, tuple[int, int, int]]]:
        """Return the thread blocks, with these receives and sends fused, and where each receive stands."""
        copies: list[Node] = [("c", chunk) for _, chunk in self._own_copies()]
        fused = set(whole.values())
        lists: dict[_Block, list[Node]] = {}
        for node in [*copies, *(one for one in self.order if one[0] == "r" or one[1] not in fused)]:
            lists.setdefault(of[node], []).append(node)
        blocks = sorted(lists, key=lambda one: (one.rank, one.send, one.receive, one.channel))
        ranks = [[one for one in blocks if one.rank == rank] for rank in range(self.program.size)]
        number = {block: place for several in ranks for place, block in enumerate(several)}
        at = {node: (number[block], position) for block in blocks for position, node in enumerate(lists[block])}
        at |= {("s", send): at["r", receive] for receive, send in whole.items()}
        made = tuple(
            tuple(
                ThreadBlock(b.send, b.receive, b.channel, tuple(self._in_block(lists[b], at, whole))) for b in several
            )
            for several in ranks
        )
        return made, {k: (self.sends[k].destination, *at["r", k]) for k in range(len(self.sends))}

    def _in_block(
        self, nodes: list[Node], at: dict[Node, tuple[int, int]], whole: dict[int, int]
    ) -> Iterable[Instruction]:
        """Yield the instructions of one thread block; what an earlier one has waited for is not waited for again."""
        seen = {at[nodes[0]][0]: len(nodes)}
        for node in nodes:
            together = [node, ("s", whole[node[1]])] if node[0] == "r" and node[1] in whole else [node]
            needs = {at[need] for one in together for need in self._needs(one) if need not in together}
            latest = {block: max(p for b, p in needs if b == block) for block, _ in needs}
            waits = sorted((block, p) for block, p in latest.items() if p > seen.get(block, -1))
            seen.update(waits)
            yield self._instruction(node, len(together) > 1, tuple(waits))

    def _instruction(self, node: Node, fused: bool, waits: tuple[tuple[int, int], ...]) -> Instruction:
        what, k = node
        if what == "c":
            ((rank, _),) = [place for place in self._own_copies() if place[1] == k]
            return Instruction("cpy", self.layout.start[rank, k], self.layout.end[rank, k], waits)
        s = self.sends[k]
        if what == "s":
            return Instruction("s", self.homes[s.source, s.chunk], None, waits)
        home = self.homes[s.destination, s.chunk]
        if s.op != REDUCE:
            return Instruction("rcs" if fused else "r", None, home, waits)
        if fused and self._is_forgotten(s):
            return Instruction("rrs", home, None, waits)
        return Instruction("rrcs" if fused else "rrc", home, home, waits)

    def _is_forgotten(self, s: VersionedSend) -> bool:
        """Whether nobody needs what this send has made but the one that sends it on."""
        made = (s.destination, s.chunk, s.makes)
        after = self.maker.get((s.destination, s.chunk, s.makes + 1))
        wanted = (s.destination, s.chunk) in self.layout.end if after is None else self.sends[after].op == REDUCE
        return not wanted and len(self.readers.get(made, ())) == 1


def _homes(where: Layout, sends: list[VersionedSend]) -> dict[Place, Location]:
    """Return where each rank has each chunk: what comes only to go on has a place of its own in the scratch buffer,
    unless the collective is in place."""
    homes = {**where.end, **where.start}
    used: Counter[int] = Counter()
    for s in sends:
        if (s.destination, s.chunk) not in homes:
            buffer = next(iter(where.start.values()))[0]
            homes[s.destination, s.chunk] = (buffer, s.chunk) if where.in_place else ("s", used[s.destination])
            used[s.destination] += 1
    return homes
