"""Three ways to add the vectors of all members where most values are zero (Renggli et al., SC 2019).

Each takes this member's flat vector and returns the sum, with the same bits on every member.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import add

import torch
from torch import Tensor

from laconic.collective.chunk_memory import cuts
from laconic.collective.ragged import gather_known
from laconic.collective.sparse.messages import gather_streams, scatter_streams, swap_streams
from laconic.collective.sparse.stream import Stream
from laconic.worker import Communication, Group


def recursive_double(flat: Tensor, group: Group) -> Communication[Tensor]:
    """SSAR_Recursive_double: in round i each member merges its stream with that of the member 2ⁱ away.

    log2 P rounds of log2(P)·k pairs in all where supports are equal, and (P - 1)·k where they are disjoint. Where P is
    no power of two, members beyond the largest one hand their stream over first and receive the sum at the end.
    """
    stream, rank, numel = Stream.of(flat), group.rank, flat.numel()
    power = 1 << (group.size.bit_length() - 1)
    partner = rank - power if rank >= power else rank + power
    if rank >= power:
        yield from swap_streams({partner: stream}, [], numel, flat, group)
    else:
        if partner < group.size:
            stream = stream + (yield from swap_streams({}, [partner], numel, flat, group))[partner]
        distance = 1
        while distance < power:
            other = rank ^ distance
            stream = stream + (yield from swap_streams({other: stream}, [other], numel, flat, group))[other]
            distance *= 2
    if rank >= power:
        stream = (yield from swap_streams({}, [partner], numel, flat, group))[partner]
    elif partner < group.size:
        yield from swap_streams({partner: stream}, [], numel, flat, group)
    return stream.dense()


def _split(flat: Tensor, group: Group) -> Communication[tuple[Stream, list[int]]]:
    """Send every member the pairs of its range, and add what arrives in the order of ranks; also return where ranges
    begin and end."""
    stream, bounds = Stream.of(flat), cuts([1.0] * group.size, flat.numel())
    parts = [stream.slice(begin, end) for begin, end in pairwise(bounds)]
    received = yield from scatter_streams(parts, flat, group)
    return reduce(add, received), bounds


def split_allgather(flat: Tensor, group: Group) -> Communication[Tensor]:
    """SSAR_Split_allgather: member j adds all pairs of the j-th range of indices, and the sums are gathered as streams.

    Between 2(P - 1)/P·k pairs where supports are equal and P·k where they are disjoint, if ranges have equal counts.
    """
    mine, bounds = yield from _split(flat, group)
    numels = [end - begin for begin, end in pairwise(bounds)]
    parts = yield from gather_streams(mine, numels, flat, group)
    return torch.cat([part.dense() for part in parts])


def dense_allgather(flat: Tensor, group: Group) -> Communication[Tensor]:
    """DSAR_Split_allgather: the same, but the sums are gathered as dense vectors: (P - 1)/P·N values, however many are
    not zero, and no headers."""
    mine, bounds = yield from _split(flat, group)
    numels = [end - begin for begin, end in pairwise(bounds)]
    parts = yield from gather_known(mine.dense(), numels, group)
    return torch.cat(parts)


SUMS = {"recursive_double": recursive_double, "split_allgather": split_allgather, "dense_allgather": dense_allgather}
