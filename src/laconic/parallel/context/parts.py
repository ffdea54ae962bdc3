"""Which tokens of a sequence each device holds, and which pairs of them attention computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Parts:
    """A sequence that is cut among devices.

    With as many chunks as devices, device r holds the r-th. A causal attention then gives the last device p times the
    work of the first. Cut in zigzag there are twice as many chunks, and device r of p holds chunks r and 2p - 1 - r: in
    every step of a ring all devices compute the same number of blocks. (Striped Attention, Brandon et al. 2023, deals
    single tokens out to the same end; whole chunks leave blocks that need not be computed at all.) Lengths that do not
    divide give chunks that differ by one token.

    - `length`: of the whole sequence.
    - `size`: the number of devices.
    - `zigzag`: whether it is cut in zigzag.
    """

    length: int
    size: int
    zigzag: bool = False

    def __post_init__(self) -> None:
        if self.length < self.count:
            raise LaconicError(
                f"a sequence of {self.length} tokens cannot be cut into {self.count} chunks"
                + (f", two for each of {self.size} devices in zigzag" if self.zigzag else "")
            )

    @property
    def count(self) -> int:
        """The number of chunks."""
        return 2 * self.size if self.zigzag else self.size

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Where each chunk begins and ends in the sequence; the first ones have a token more, as they need."""
        each, more = divmod(self.length, self.count)
        return list(pairwise(accumulate((each + (k < more) for k in range(self.count)), initial=0)))

    def chunks(self, device: int) -> list[int]:
        """Return the numbers of the chunks that a device holds, in their order."""
        return [device, self.count - 1 - device] if self.zigzag else [device]

    def chunk_lengths(self, device: int) -> list[int]:
        """Return how many tokens each chunk of a device has."""
        return [self.bounds[chunk][1] - self.bounds[chunk][0] for chunk in self.chunks(device)]

    def tokens(self, device: int) -> int:
        """Return how many tokens a device holds."""
        return sum(self.chunk_lengths(device))

    def positions(self, device: int) -> Tensor:
        """Return the positions of a device's tokens in the sequence."""
        return torch.cat([torch.arange(*self.bounds[chunk]) for chunk in self.chunks(device)])

    @property
    def order(self) -> Tensor:
        """The positions of all devices' tokens, one device after the other: a permutation of the sequence."""
        return torch.cat([self.positions(device) for device in range(self.size)])

    def blocks(self, queries: int, keys: int, causal: bool) -> list[Block]:
        """Return the blocks that a device's queries compute with the keys of another, none of which is all masked."""
        rows, columns = (_slices(self.chunk_lengths(device)) for device in (queries, keys))
        return [
            Block(own, other, causal and q == k)
            for q, own in zip(self.chunks(queries), rows, strict=True)
            for k, other in zip(self.chunks(keys), columns, strict=True)
            if not causal or q >= k
        ]

    def pairs(self, queries: int, keys: int, causal: bool) -> int:
        """Return how many scores of queries and keys those blocks hold."""
        return sum(block.pairs for block in self.blocks(queries, keys, causal))


@dataclass(frozen=True)
class Block:
    """Queries of one chunk and keys of another, by their places on their devices; of the same chunk, each query sees
    the keys up to its own where it is `triangular`."""

    queries: slice
    keys: slice
    triangular: bool

    @property
    def pairs(self) -> int:
        """How many scores it has."""
        return int(self.queries.stop - self.queries.start) * int(self.keys.stop - self.keys.start)


def _slices(lengths: Sequence[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(accumulate(lengths, initial=0))]
