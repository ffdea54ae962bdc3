"""MSCCL++'s execution plans: JSON in which ranks put chunks into each other's memory and signal that they are there.

Fields are those that MSCCL++'s executor reads (its document on the format has older names for some); no executor was
run on them. A chunk is put where it belongs if nothing was there before, and otherwise into a place of the receiver's
scratch buffer that no other message uses, from which the receiver copies or adds it. So a put never waits, but for the
receiver to have begun: it says so once on each connection, and the sender's memory of an earlier run is safe. Channels
are of the type `memory`: ranks of one host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from laconic.collective.instructions import Instructions
from laconic.collective.lowering import lower
from laconic.collective.program import Program
from laconic.collective.thread_blocks import Connection, Location, Point, ThreadBlock
from laconic.errors import ProgramError

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}
Op = dict[str, Any]


def to_mscclpp(program: Program, threads: int = 1024) -> str:
    """Return a program as an execution plan of MSCCL++.

    - `program`: one with equal chunks, of a collective that MSCCL++ has.
    - `threads`: how many threads a thread block has.
    """
    if not np.allclose(program.shares, program.shares[0]):
        raise ProgramError(f"{program.name} has chunks of different sizes, which a plan of MSCCL++ cannot say")
    code = lower(program, fuse=False)
    if code.layout.collective not in COLLECTIVES:
        raise ProgramError(
            f"MSCCL++ has no {program.relation.name} as {program.name} does it, but {', '.join(COLLECTIVES)}"
        )
    plan = {
        "name": program.name,
        "collective": COLLECTIVES[code.layout.collective],
        "protocol": "Simple",
        "inplace": code.layout.in_place,
        "reuse_resources": False,
        "gpus": _Plan(code).gpus(),
        "num_threads_per_block": threads,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }
    return json.dumps(plan, indent=1) + "\n"


class _Plan:
    """What the thread blocks of all ranks agree on: where each message lands, and which channels there are."""

    def __init__(self, code: Instructions) -> None:
        self.code = code
        sent: dict[Connection, list[Point]] = {}
        came: dict[Connection, list[Point]] = {}
        for rank, blocks in enumerate(code.blocks):
            for one, block in enumerate(blocks):
                for position, step in enumerate(block.instructions):
                    if step.kind == "s":
                        sent.setdefault((rank, block.send, block.channel), []).append((rank, one, position))
                    elif step.kind in ("r", "rrc"):
                        came.setdefault((block.receive, rank, block.channel), []).append((rank, one, position))
        self.connections = sorted(sent)
        self.scratch = code.scratch
        self.lands = {point: self._landing(point) for connection in self.connections for point in came[connection]}
        self.lands |= {a: self.lands[b] for c in self.connections for a, b in zip(sent[c], came[c], strict=True)}

    def _landing(self, receiver: Point) -> Location:
        """Return where a message is put: its place, where the rank has nothing there before and puts nothing else."""
        rank, one, position = receiver
        home = self.code.blocks[rank][one].instructions[position].target
        uses = [s for b in self.code.blocks[rank] for s in b.instructions if s.target == home]
        if home is not None and home not in self._at_start(rank) and len(uses) == 1:
            return home
        self.scratch[rank] += 1
        return "s", self.scratch[rank] - 1

    def _at_start(self, rank: int) -> set[Location]:
        return {at for place, at in self.code.layout.start.items() if place[0] == rank}

    def gpus(self) -> list[Op]:
        return [self._gpu(rank) for rank in range(self.code.relation.size)]

    def _gpu(self, rank: int) -> Op:
        mine = sorted((c for c in self.connections if rank in c[:2]), key=lambda c: (c[1] if c[0] == rank else c[0], c))
        remote = sorted(
            {
                (block.send, self.lands[rank, one, p][0])
                for one, block in enumerate(self.code.blocks[rank])
                for p, s in enumerate(block.instructions)
                if s.kind == "s"
            }
        )
        waits = sorted(
            {
                (other, one)
                for one, b in enumerate(self.code.blocks[rank])
                for s in b.instructions
                for other, _ in s.waits
            }
        )
        found: Op = {
            "id": rank,
            "input_chunks": self.code.layout.inputs,
            "output_chunks": self.code.layout.outputs,
            "scratch_chunks": self.scratch[rank],
            "threadblocks": [self._block(rank, one, mine, remote, waits) for one in range(len(self.code.blocks[rank]))],
            "channels": [{"channel_type": "memory", "connected_to": [b if a == rank else a for a, b, _ in mine]}]
            if mine
            else [],
            "remote_buffers": [{"rank": r, "type": t, "access_channel_types": ["memory"]} for r, t in remote],
            "semaphores": [{"init_value": 0} for _ in waits],
        }
        return found

    def _block(
        self, rank: int, one: int, mine: list[Connection], remote: list[tuple[int, str]], waits: list[tuple[int, int]]
    ) -> Op:
        block = self.code.blocks[rank][one]
        channels = [c for c in ((rank, block.send, block.channel), (block.receive, rank, block.channel)) if c in mine]
        buffers = [place for place, (to, _) in enumerate(remote) if to == block.send]
        writer = _Block(self, rank, one, block, [remote[place][1] for place in buffers], waits)
        return {
            "id": one,
            "ops": list(writer.ops()),
            "channels": [{"channel_type": "memory", "channel_ids": [mine.index(c) for c in channels]}]
            if channels
            else [],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": buffers}] if buffers else [],
        }


class _Block:
    """The operations of one thread block. Its channels are 0 to send on, and the next to receive on; a `nop` makes all
    its threads wait for each other."""

    def __init__(
        self, plan: _Plan, rank: int, one: int, block: ThreadBlock, buffers: list[str], waits: list[tuple[int, int]]
    ) -> None:
        self.plan, self.rank, self.one, self.block, self.buffers, self.waits = plan, rank, one, block, buffers, waits
        self.receiving = 1 if block.send >= 0 else 0

    def ops(self) -> Iterator[Op]:
        """Yield the operations in their order."""
        if self.block.receive >= 0:
            yield self._on_channel("rlxsignal", self.receiving)
        sends = [position for position, step in enumerate(self.block.instructions) if step.kind == "s"]
        for position, step in enumerate(self.block.instructions):
            if step.waits:
                acquired = [self.waits.index((other, self.one)) for other, _ in step.waits]
                yield {"name": "sem_acquire", "semaphore_ids": acquired}
                yield {"name": "nop"}
            if position in sends[:1]:
                yield self._on_channel("rlxwait", 0)
                yield {"name": "nop"}
            yield from self._data(position)
            yield {"name": "nop"}
            if position in sends:
                yield self._on_channel("signal", 0)
            if released := self._released(position):
                yield {"name": "sem_release", "semaphore_ids": released}

    def _released(self, position: int) -> list[int]:
        """Return the semaphores of the thread blocks that wait for this instruction."""
        blocks = self.plan.code.blocks[self.rank]
        after = [other for other, b in enumerate(blocks) for s in b.instructions if (self.one, position) in s.waits]
        return [self.waits.index((self.one, other)) for other in after]

    def _data(self, position: int) -> Iterator[Op]:
        step = self.block.instructions[position]
        home = step.target or step.source
        assert home is not None
        if step.kind == "cpy":
            assert step.source is not None
            yield {"name": "copy", "src_buff": [_here(step.source)], "dst_buff": [_here(home)]}
            return
        lands = self.plan.lands[self.rank, self.one, position]
        if step.kind == "s":
            there = {"buffer_id": self.buffers.index(lands[0]), "index": lands[1], "size": 1}
            yield {**self._on_channel("put", 0), "src_buff": [_here(home)], "dst_buff": [there]}
            return
        yield self._on_channel("wait", self.receiving)
        yield {"name": "nop"}
        if step.kind == "rrc":
            yield {"name": "re", "src_buff": [_here(home), _here(lands)], "dst_buff": [_here(home)], "reduce_op": "sum"}
        elif lands != home:
            yield {"name": "copy", "src_buff": [_here(lands)], "dst_buff": [_here(home)]}

    def _on_channel(self, name: str, channel: int) -> Op:
        return {"name": name, "channel_ids": [channel], "channel_type": "memory"}


def _here(at: Location) -> Op:
    return {"type": at[0], "index": at[1], "size": 1}
