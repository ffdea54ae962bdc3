"""Sums of blocks that are not zero, streamed through aggregators (OmniReduce: Fei et al., SIGCOMM 2021).

The vector is a matrix of blocks, and each column is a stream of one aggregator. A worker sends the first block of a
stream, and with every block where its next one that is not zero lies. Once all workers that have the current block have
sent it, the aggregator knows the nearest next one of all: it gives everybody the sum and asks for that block, and who
has it answers. So a block that is zero everywhere is never sent, but for the first of each stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.collective.ragged import ReadByHost
from laconic.worker import Communication, Group

POINTER_BYTES = 4
END = np.iinfo(np.int32).max
"""The pointer behind a worker's last block of a stream."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """How a vector is cut into blocks, and blocks into streams.

    - `block`: values of a block; the last is padded with zeros.
    - `columns`: the number of streams. Column c is that of aggregator c mod A, in one of two halves: while blocks of
      one half are sent to aggregators, sums of the other half are sent to workers.
    - `rows`: the largest number of blocks of a stream.
    """

    block: int
    columns: int
    rows: int
    aggregators: int

    @staticmethod
    def of(numel: int, block: int, fused: int, aggregators: int) -> Layout:
        """Return the layout where a packet has up to `fused` blocks."""
        blocks = max(1, -(-numel // block))
        columns = min(blocks, 2 * fused * aggregators)
        return Layout(block, columns, -(-blocks // columns), aggregators)

    def owned(self, aggregator: int, half: int) -> Rows:
        """Return the columns of an aggregator in one half."""
        every = np.arange(aggregator, self.columns, self.aggregators)
        found: Rows = every[every // self.aggregators % 2 == half]
        return found


def omnireduce(
    flat: Tensor, group: Group, workers: Sequence[int], aggregators: Sequence[int], block: int, fused: int
) -> Communication[Tensor]:
    """Add the flat vectors of all workers, and return the sum to each of them.

    - `flat`: this member's vector; one that only aggregates gives any of the same length and type.
    - `workers`, `aggregators`: members of the group, which may be the same.
    - `block`, `fused`: values of a block, and blocks of a packet.
    """
    layout = Layout.of(flat.numel(), block, fused, len(aggregators))
    works = _Worker(flat, layout) if group.rank in workers else None
    place = list(aggregators).index(group.rank) if group.rank in aggregators else -1
    sums = _Aggregator(flat, layout, place, len(workers)) if place >= 0 else None
    control, tick = POINTER_BYTES / (POINTER_BYTES + block * flat.element_size()), 0
    while (works is not None and works.waits) or (sums is not None and sums.waits):
        up, down = tick % 2, 1 - tick % 2
        sends, mine = list[tuple[Tensor, int]](), dict[str, Tensor]()
        receives: dict[str, list[tuple[Tensor, int]]] = {"up": [], "down": []}
        if works is not None:
            for a, member in enumerate(aggregators):
                packet, expected = works.packet(layout.owned(a, up)), works.expected(layout.owned(a, down))
                if member == group.rank:
                    mine["up"] = packet
                    continue
                if len(packet):
                    sends.append((packet, member))
                if expected:
                    receives["down"].append((works.room(expected), member))
        if sums is not None:
            results = sums.results(layout.owned(place, down))
            for w, member in enumerate(workers):
                count = sums.expected(layout.owned(place, up), w)
                if member == group.rank:
                    mine["down"] = results
                    continue
                if len(results):
                    sends.append((results, member))
                if count:
                    receives["up"].append((sums.room(count), member))
        arrived = {(member, way): x for way, each in receives.items() for x, member in each}
        if sends or arrived:  # who is sent blocks and sums receives them in this order
            handles = group.swap(sends, receives["up"] + receives["down"], control)
            yield [ReadByHost(handle) for handle in handles]
        if sums is not None:
            for w, member in enumerate(workers):
                packet = mine["up"] if member == group.rank else arrived.get((member, "up"), sums.room(0))
                sums.take(packet, layout.owned(place, up), w)
            sums.close(layout.owned(place, up))
        if works is not None:
            for a, member in enumerate(aggregators):
                packet = mine["down"] if member == group.rank else arrived.get((member, "down"), works.room(0))
                works.take(packet, layout.owned(a, down))
            works.sent(up)
        tick += 1
    return flat if works is None else works.total[: flat.numel()]


def _records(pointers: Rows, blocks: Tensor) -> Tensor:
    """Return a row of bytes for each block: a pointer, then its values."""
    heads = torch.from_numpy(pointers.astype(np.int32)).view(-1, 1).view(torch.uint8).to(blocks.device)
    return torch.cat([heads, blocks.contiguous().view(torch.uint8)], dim=1)


def _read(packet: Tensor, dtype: torch.dtype) -> tuple[Rows, Tensor]:
    """Return the pointers and the blocks of a packet, each copied to where its type may begin."""
    head, body = (part.clone(memory_format=torch.contiguous_format) for part in packet.tensor_split([POINTER_BYTES], 1))
    return head.view(torch.int32).view(-1).cpu().numpy().astype(np.int64), body.view(dtype)


@dataclass
class _Member:
    """What workers and aggregators both keep: which block each stream is at."""

    flat: Tensor
    layout: Layout
    at: Rows = field(init=False)  # the row that is asked for, by column; END: the stream is over

    def __post_init__(self) -> None:
        self.at = np.zeros(self.layout.columns, np.int64)

    def room(self, records: int) -> Tensor:
        """Return where so many blocks are received."""
        width = POINTER_BYTES + self.layout.block * self.flat.element_size()
        return self.flat.new_empty((records, width), dtype=torch.uint8)


@dataclass
class _Worker(_Member):
    """A worker's blocks, its pointers and what it knows of the sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layout, count = self.layout, self.layout.rows * self.layout.columns
        padded = torch.nn.functional.pad(self.flat, (0, count * layout.block - self.flat.numel()))
        self._blocks = padded.view(count, layout.block)
        self._sum = torch.zeros_like(self._blocks)
        used = (self._blocks != 0).any(1).cpu().numpy().reshape(layout.rows, layout.columns)
        rows = np.where(used, np.arange(layout.rows)[:, None], END)
        nearest = np.minimum.accumulate(rows[::-1])[::-1]
        self._following = np.vstack([nearest[1:], np.full((1, layout.columns), END)])
        self._own = np.zeros(layout.columns, np.int64)  # its next block of each stream; the first is always sent
        self._asked = [False, False]  # whether sums of a half are on their way

    @property
    def total(self) -> Tensor:
        return self._sum.view(-1)

    @property
    def waits(self) -> bool:
        return bool((self.at != END).any())

    def packet(self, columns: Rows) -> Tensor:
        """Return the blocks that an aggregator has asked for and this worker has."""
        columns = columns[(self.at[columns] != END) & (self._own[columns] == self.at[columns])]
        rows = self._own[columns]
        self._own[columns] = self._following[rows, columns]
        return _records(self._own[columns], self._blocks[torch.from_numpy(rows * self.layout.columns + columns)])

    def sent(self, half: int) -> None:
        self._asked[half] = True

    def expected(self, columns: Rows) -> int:
        """Return how many sums an aggregator sends: one of each stream that is not over, after its blocks were sent."""
        asked = len(columns) and self._asked[int(columns[0]) // self.layout.aggregators % 2]
        return int((self.at[columns] != END).sum()) if asked else 0

    def take(self, packet: Tensor, columns: Rows) -> None:
        """Store sums that have arrived, and note which blocks are asked for now."""
        if not len(packet):
            return
        columns = columns[self.at[columns] != END]
        pointers, blocks = _read(packet, self.flat.dtype)
        self._sum[torch.from_numpy(self.at[columns] * self.layout.columns + columns)] = blocks
        self.at[columns] = pointers


@dataclass
class _Aggregator(_Member):
    """The streams of one aggregator: the sums of their current blocks, and every worker's next one."""

    place: int
    workers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        layout = self.layout
        self.at[np.arange(layout.columns) % layout.aggregators != self.place] = END
        self._next = np.zeros((self.workers, layout.columns), np.int64)
        self._sum = self.flat.new_zeros((layout.columns, layout.block))
        self._ready = np.zeros(layout.columns, bool)

    @property
    def waits(self) -> bool:
        return bool((self.at != END).any())

    def expected(self, columns: Rows, worker: int) -> int:
        """Return how many blocks a worker sends now."""
        return len(self._of(columns, worker))

    def _of(self, columns: Rows, worker: int) -> Rows:
        found: Rows = columns[(self.at[columns] != END) & (self._next[worker, columns] == self.at[columns])]
        return found

    def take(self, packet: Tensor, columns: Rows, worker: int) -> None:
        """Add a worker's blocks, and note its pointers."""
        if not len(packet):
            return
        columns = self._of(columns, worker)
        pointers, blocks = _read(packet, self.flat.dtype)
        self._sum[torch.from_numpy(columns)] += blocks
        self._next[worker, columns] = pointers

    def close(self, columns: Rows) -> None:
        """Note that all blocks of these streams that were asked for have arrived."""
        self._ready[columns[self.at[columns] != END]] = True

    def results(self, columns: Rows) -> Tensor:
        """Return the sums that are complete, with the block that is asked for next in each stream."""
        columns = columns[self._ready[columns]]
        self.at[columns] = self._next[:, columns].min(0) if len(columns) else 0
        self._ready[columns] = False
        which = torch.from_numpy(columns)
        packet = _records(self.at[columns], self._sum[which])
        self._sum[which] = 0
        return packet
