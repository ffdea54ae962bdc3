"""Gradients to the owners of shards, over one group or over several tiers of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from laconic.compression.base import Compressor
from laconic.compression.loco import ShortMemory
from laconic.compression.owner_rows import ToOwners
from laconic.compression.to_owners import DenseToOwners, to_owners
from laconic.errors import StrategyError
from laconic.runtime.in_flight import run_exchanges
from laconic.runtime.tiers import Tier
from laconic.runtime.whole_buckets import widened
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication

_DENSE = DenseToOwners()


class OwnersTier(Tier):
    """A tier whose members own a shard each: what they exchange ends at the owners."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sentence.sync.name != "bsp":
            raise StrategyError(
                f"`{self.sentence}`: gradients of shards are scattered in every backward pass, so the tier takes a "
                f"compression; write [{self.compression}]@shard, and let {self.sentence.sync} join replicas outside"
            )
        self.compressor: Compressor = to_owners([word.make() for word in self.sentence.compression])

    def scatter(self, spec: TensorSpec, rows: Tensor, step: int) -> Communication[Tensor]:
        """Return the mean over the members of their rows for this one; `rows` has one for each member. The mean of rows
        of 16 bits is in float32."""
        spec = TensorSpec(spec.name, tuple(rows.shape), rows.dtype)
        if isinstance(self.compressor, DenseToOwners) or not self.compressor.accepts(spec):
            (plain,) = yield from run_exchanges([_DENSE.exchange(rows, {}, self.meeting(spec, step))], self.carry)
            return plain.result  # type: ignore[no-any-return]
        self.coded("encode", self.compression, (spec.numel,))
        spec = widened(spec)  # a memory of 16 bits would forget
        reads_short = isinstance(self.compressor, ToOwners | ShortMemory)
        values = rows if reads_short else rows.to(spec.dtype)
        exchange = self.compressor.exchange(values, self.state_of(spec, values), self.meeting(spec, step))
        (outcome,) = yield from run_exchanges([exchange], self.carry)
        self.coded("decode", self.compression, (spec.numel // len(rows),))
        self.memory[spec.name] = outcome.state
        return outcome.result  # type: ignore[no-any-return]


@dataclass
class ShardScatter:
    """A reduce-scatter in as many hops as there are tiers: inside hosts first, then across them.

    After the first hop each member holds a sum of its host for as many owners as there are hosts, so that what crosses
    is smaller by the size of a host; each value is encoded once in each hop.
    """

    tiers: Sequence[OwnersTier]
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of owners."""
        size = 1
        for tier in self.tiers:
            size *= tier.group.size
        return size

    def mean(self, name: str, flat: Tensor) -> Communication[Tensor]:
        """Return this worker's shard of the mean of all workers' flat tensors, in float32 where these have 16 bits. The
        shards of owners lie one after another, in the order of ranks with those of the innermost tier as the fastest
        index."""
        step = self.steps[name] = self.steps.get(name, -1) + 1
        rows = flat.view(*(tier.group.size for tier in reversed(self.tiers)), -1)
        for hop, tier in enumerate(self.tiers):
            parts = rows.to(flat.dtype).movedim(-2, 0)  # by owner in this tier, and inside by owner in the outer ones
            spec = TensorSpec(f"{name}@{hop}" if hop else name, tuple(parts.shape), flat.dtype)
            mean = yield from tier.scatter(spec, parts.reshape(len(parts), -1), step)
            rows = mean.view(parts.shape[1:])
        return rows.reshape(-1)
