"""Averages over several tiers that use the links between inner groups once.

After an average inside a host all its members hold the same values: if each sent them to the other hosts, a full copy
per member would cross. So values are reduce-scattered inside; each member exchanges its own shard with its counterparts
in the other hosts, compressed as the outer tier says; and the shards are gathered inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.base import Architecture
from laconic.compression.base import Compressor
from laconic.compression.cast import Cast
from laconic.compression.optional import takes_vectors
from laconic.runtime.shard_memory import move_memory
from laconic.runtime.spans import Span
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Gather, Reduce, ReduceScatter


def sentences_shard(inner: Sentence, outer: Sequence[Sentence], specs: Sequence[TensorSpec]) -> bool:
    """Return whether averages of such tensors cross the outer tiers in shards, by what the words declare.

    Inside, sums must be all that is made of them, in a shorter format at most; outside, a compressor must take vectors.
    """
    compressor: Compressor = inner.compressor
    if any(sentence.sync.make().skips for sentence in (inner, *outer)) or not hands_out_shards(inner):
        return False
    if not only_casts(compressor) and any(map(compressor.accepts, specs)):
        return False
    return all(takes_vectors(sentence.compressor, spec) for sentence in outer for spec in specs)


def hands_out_shards(sentence: Sentence) -> bool:
    """Return whether the members of a tier can be given a shard of a sum each."""
    architecture: Architecture = sentence.architecture.make()
    return ReduceScatter in (architecture.carries or ())


def only_casts(compressor: Compressor) -> bool:
    """Return whether a compressor does nothing but round each value by itself to a shorter format."""
    return isinstance(compressor, Cast) and compressor.nearest


def crosses_in_shards(tiers: Sequence[Tier], spans: Sequence[Span], specs: Sequence[TensorSpec]) -> bool:
    """Return whether a message with these spans and tensors crosses its tiers in shards.

    All members of the inner group must go through as many rounds, so that each needs something to compress where one
    does.
    """
    inner, *outer = tiers
    size = inner.group.size
    if size == 1 or all(tier.group.size == 1 for tier in outer):
        return False
    if not sentences_shard(inner.sentence, [tier.sentence for tier in outer], specs):
        return False
    return all(
        any(map(tier.compressor.accepts, span.shard(rank, size).specs))
        for span in spans
        for tier, compressed in zip(outer, span.compressed[1:], strict=True)
        if compressed
        for rank in range(size)
    )


def average_in_shards(tiers: Sequence[Tier], x: Tensor, span: Span, step: int) -> Communication[Any]:
    """Average a flat tensor, which is divided by the size of the inner group already, in place over all tiers."""
    inner, *outer = tiers
    group, wire = inner.group, inner.wire(x) if span.compressed[0] else x.dtype
    shorter = wire != x.dtype
    padding, control = span.padding(group.size), span.control_share(group.size)
    if shorter:
        inner.coded("encode", inner.compression, (x.numel(),))
    sent = x.to(wire)
    whole = torch.nn.functional.pad(sent, (0, padding)) if padding else sent
    mine = yield from inner.carry(ReduceScatter(whole, control))
    shard = mine.to(x.dtype)
    yield from _average_shard(outer, inner, shard, span, step)
    rows = yield from inner.carry(Gather(shard.to(wire), control))
    x.copy_(rows.view(-1)[: x.numel()])
    if shorter:
        inner.coded("decode", inner.compression, (x.numel(),))


def _average_shard(tiers: Sequence[Tier], inner: Tier, shard: Tensor, whole: Span, step: int) -> Communication[Any]:
    """Average this member's shard of a span over the tiers outside of `inner`."""
    span = whole.shard(inner.group.rank, inner.group.size)
    live = shard[: span.numel]
    for place, (tier, compressed) in enumerate(zip(tiers, span.compressed, strict=True)):
        if compressed:
            yield from move_memory(tier, inner, whole, live)
            yield from _average_pieces(tier, live, span, step)
            continue
        live.mul_(1 / tier.group.size)
        if place < len(tiers) - 1 and not span.specs and tier.group.size > 1 and hands_out_shards(tier.sentence):
            rest = Span(span.numel, span.compressed[place:], control=span.control)
            yield from average_in_shards(tiers[place:], live, rest, step)
            return
        yield from tier.carry(Reduce(live, "sum", span.control_share()))


def _average_pieces(tier: Tier, live: Tensor, span: Span, step: int) -> Communication[Any]:
    """Average compressed pieces of tensors in one tier, in place: as a bucket where the compressor does that."""
    if all(map(tier.compressor.accepts, span.specs)):
        whole = tier.whole.average(span.specs, live, step)
        if whole is not None:
            yield from whole
            return
    pieces = live.split([spec.numel for spec in span.specs])
    means = yield from tier.average(span.specs, pieces, step)
    for piece, mean in zip(pieces, means, strict=True):
        piece.copy_(mean)
