"""Collectives of vectors whose lengths differ: lengths are exchanged first, as control, and then the vectors alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.worker import Communication, Group, Handle


class ReadByHost:
    """A handle whose result the host reads, so that waiting for it always blocks the host; otherwise the handle
    itself."""

    stream_ordered = False

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def done(self) -> bool:
        return self._handle.done()

    def wait(self) -> Any:
        return self._handle.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def gather_ragged(x: Tensor, parts: Sequence[int], group: Group) -> Communication[list[list[Tensor]]]:
    """Give every member every member's flat vector, in the order of ranks, cut into parts of its sender's lengths."""
    own = torch.tensor(parts, dtype=torch.int64, device=x.device)
    lengths = (yield ReadByHost(group.all_gather(own, control=1.0))).view(group.size, len(parts)).tolist()
    rows = yield from gather_known(x, [sum(row) for row in lengths], group)
    return [list(row.split(each)) for row, each in zip(rows, lengths, strict=True)]


def gather_known(x: Tensor, lengths: Sequence[int], group: Group) -> Communication[list[Tensor]]:
    """Give every member every member's flat vector, in the order of ranks, of lengths that all members know."""
    everyone = yield group.all_to_all(x.repeat(group.size), [x.numel()] * group.size, lengths)
    return list(everyone.split(list(lengths)))


def scatter_ragged(x: Tensor, lengths: Sequence[Sequence[int]], group: Group) -> Communication[list[list[Tensor]]]:
    """Send member j the parts of the j-th row of lengths, which lie one behind another in a flat vector; return what
    every member sent to this one, in the order of ranks, cut into the parts of its sender."""
    own = torch.tensor(lengths, dtype=torch.int64, device=x.device)
    received = (yield ReadByHost(group.all_to_all(own.view(-1), control=1.0))).view(own.shape).tolist()
    totals = [sum(row) for row in received]
    joined = yield group.all_to_all(x, [sum(row) for row in lengths], totals)
    return [list(row.split(each)) for row, each in zip(joined.split(totals), received, strict=True)]
