"""What a compressor remembers of shards follows their values when messages are formed anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laconic.compression.base import State
from laconic.runtime.spans import Span, piece_of
from laconic.runtime.tiers import Tier
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, ReduceScatter

_SAMPLE = 1009  # a length that no entry of a memory has by chance


def move_memory(tier: Tier, inner: Tier, span: Span, like: Tensor) -> Communication[Any]:
    """Move what an outer tier remembers of each value to the member of the inner group whose shard holds the value now.

    Messages are formed anew when the order of gradients has become known, and when measurements ask for it: then the
    same values lie in other members' shards. A memory with an entry for each value is moved; what else a compressor
    remembers begins anew. All members of the inner group do this together.
    """
    names = span.names
    moved = [name for name in names if tier.sharded_with.get(name, names) != names]
    tier.sharded_with.update(dict.fromkeys(names, names))
    if not moved:
        return
    old = _taken_out(tier, set(moved))
    found: dict[str, Tensor] = {}
    for key, dtype in _kept_by_value(tier, span.specs[0]).items():
        whole = torch.zeros(span.numel + span.padding(inner.group.size), dtype=dtype, device=like.device)
        start = 0
        for spec in span.specs:
            for (name, first, last), state in old.items():
                if name == spec.name:
                    whole[start + first : start + last] = state[key].view(-1)
            start += spec.numel
        found[key] = yield from inner.carry(ReduceScatter(whole, control=1.0))
    start = 0
    for piece in span.shard(inner.group.rank, inner.group.size).specs:
        state = {key: value.to(like.device) for key, value in tier.compressor.init(piece).items()}
        for key, shard in found.items():
            state[key] = shard[start : start + piece.numel].clone()
        tier.memory[piece.name] = state
        start += piece.numel
    tier.whole.memory_replaced()


def _taken_out(tier: Tier, tensors: set[str]) -> dict[tuple[str, int, int], State]:
    """Return the memory of all pieces of these tensors, and forget it."""
    pieces = {name: piece_of(name) for name in tier.memory}
    return {piece: tier.memory.pop(name) for name, piece in pieces.items() if piece and piece[0] in tensors}


def _kept_by_value(tier: Tier, spec: TensorSpec) -> dict[str, torch.dtype]:
    """Return the entries of the compressor's memory that have one number for each value, with their types."""
    sample = tier.compressor.init(TensorSpec("any", (_SAMPLE,), spec.dtype))
    return {key: entry.dtype for key, entry in sample.items() if entry.numel() == _SAMPLE}
