"""Weights from the owners of shards: all that compute with them decode the same messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.chain import chain
from laconic.compression.codec import Codec
from laconic.compression.gradient_differences import EF21
from laconic.compression.none import Identity
from laconic.compression.owner_rows import decoded, encoded
from laconic.errors import StrategyError
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Gather

_COARSE_BITS = 6  # with fewer, weights themselves lose too much


class WeightsTier(Tier):
    """A tier in which the owners of shards send their weights to all: as they are, in a codec, or, where `ef21` ends
    the chain, as coded differences from the weights that everybody has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compressor, self.sends_differences = gathered_as(self.sentence)


def gathered_as(sentence: Sentence) -> tuple[Compressor, bool]:
    """Return how owners send the weights that a sentence describes, and whether they send differences: where `ef21`
    ends its chain. Chains in which weights cannot be sent, or lose too much, are refused."""
    links: list[Compressor] = [word.make() for word in sentence.compression]
    words, differences = sentence.chain, len(links) > 1 and isinstance(links[-1], EF21)
    codec = chain(links[:-1] if differences else links)
    if isinstance(codec, Identity):
        return codec, differences
    if not isinstance(codec, Codec) or codec.ragged:
        raise StrategyError(
            f"weights cannot be gathered as {words}: owners send messages of a known length that "
            "anybody decodes alone; write int8(256)"
        )
    bits = bits_a_value(codec)
    if bits < _COARSE_BITS and not differences:
        raise StrategyError(
            f"weights of {bits:.1f} bits a value lose too much (SDP4Bit, NeurIPS 2024, sends differences for that "
            f"reason); write {words}+ef21 for differences from the last weights, or int8(256)"
        )
    return codec, differences


def bits_a_value(codec: Codec) -> float:
    """Return the bits that a codec sends for each value of a long vector."""
    spec = TensorSpec("weights", (1 << 16,), torch.float32)
    return 8 * codec.payload_bytes(spec, 1) / spec.numel


@dataclass
class ShardGather:
    """An all-gather of shards.

    The owner of a shard computes with what it sent too, since all workers must compute with the same values; its own
    shard stays exact, so that roundings do not add up over steps. With differences every worker keeps a copy of the
    weights as all know them; owners send what their shards differ from it. Differences of one step are small, and what
    a message leaves out is part of the next. The first weights are sent as they are.
    """

    tier: WeightsTier
    copies: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def gather(self, name: str, shard: Tensor, out: Tensor, again: bool = False) -> Communication[None]:
        """Write the weights of all owners to `out`, one shard after another. `again` tells that they were gathered in
        this step before, on all workers, and have not changed since: a copy of them is as good."""
        copy = self.copies.get(name)
        if again and copy is not None:
            out.copy_(copy)
            return
        tier, rows = self.tier, out.view(self.tier.group.size, -1)
        spec = TensorSpec(name, (shard.numel(),), shard.dtype)
        codec = tier.compressor
        if not isinstance(codec, Codec) or not codec.accepts(spec) or (tier.sends_differences and copy is None):
            gathered = yield from tier.carry(Gather(shard.clone(), out=rows))
            if gathered.data_ptr() != rows.data_ptr():
                rows.copy_(gathered)
        else:
            known = None if copy is None else copy.view(rows.shape).float()
            yield from self._decode(codec, spec, shard, known, rows)
        if tier.sends_differences:
            self.copies[name] = out.clone()

    def _decode(
        self, codec: Codec, spec: TensorSpec, shard: Tensor, known: Tensor | None, rows: Tensor
    ) -> Communication[None]:
        tier = self.tier
        step = self.steps[spec.name] = self.steps.get(spec.name, -1) + 1
        meet = tier.meeting(spec, step)
        tier.coded("encode", tier.compression, (spec.numel,))
        sent = shard if known is None else shard - known[tier.group.rank]
        payloads = yield from tier.carry(Gather(encoded(codec, sent[None], meet)[0]))
        if known is None:
            decoded(codec, payloads, rows, meet)
        else:
            rows.copy_(known.add_(decoded(codec, payloads, torch.empty_like(known), meet)))
        tier.coded("decode", tier.compression, (rows.numel(),))
