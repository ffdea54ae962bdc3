"""Broadcast of tensors from rank 0: of parameters and buffers at the start, and of buffers afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.runtime.sharded.local_shard import local_part
from laconic.worker import Communication, Group


def broadcast_tensors(tensors: Sequence[Tensor], groups: Sequence[Group], control: float = 0.0) -> Communication[None]:
    """Copy the first member's tensors to all members, as one message of raw bytes whatever their number and types.

    With several groups (tiers, inner to outer) the outermost goes first, so that rank 0's numbers reach every worker.
    """
    present = [t for t in map(local_part, tensors) if t.numel()]
    if not present:
        return
    raw = torch.cat([t.detach().contiguous().view(-1).view(torch.uint8) for t in present])
    for group in reversed(groups):
        yield [group.broadcast(raw, control=control)]
    if any(group.rank != 0 for group in groups):
        for t, part in zip(present, raw.split([t.nbytes for t in present]), strict=True):
            t.data.copy_(part.clone().view(t.dtype).view(t.shape))  # not an in-place change for a graph that saved it
