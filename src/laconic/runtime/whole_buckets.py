"""The buckets that a compressor exchanges as a whole in one tier: their memory, and graphs of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, KeyTables, Moment
from laconic.compression.one_by_one import reason
from laconic.compression.optional import exchange_bucket_of, joins_of
from laconic.kernels.offload import Stay
from laconic.runtime.bucket_uses import BucketReport, BucketUses
from laconic.runtime.flat_memory import FlatMemories
from laconic.runtime.graphed_exchange import GraphedExchange
from laconic.runtime.in_flight import run_exchange
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Group, Reduce, Request, Worker

SHORT = (torch.bfloat16, torch.float16)
"""Formats in which nothing is compressed: it is done in float32."""


class CompressingTier(Protocol):
    """A tier, as its buckets see it: a compressor within a group, and each tensor's memory."""

    group: Group
    worker: Worker | None
    compressor: Compressor
    compression: str

    @property
    def label(self) -> str:
        """The sentence at work, as text."""
        ...

    @property
    def offloads(self) -> bool:
        """Whether memory that is not in use lies in the host's."""
        ...

    def moment(self, step: int) -> Moment: ...
    def state_of(self, spec: TensorSpec, x: Tensor) -> State: ...
    def carry(self, request: Request) -> Communication[Any]: ...
    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None: ...
    def average(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int
    ) -> Communication[list[Tensor]]: ...


class WholeBuckets:
    """What a tier keeps of its buckets. Graphs and wide copies are found by the identity of a bucket's specifications,
    which are kept with them."""

    def __init__(self, tier: CompressingTier) -> None:
        self._tier = tier
        self._flat_memories = FlatMemories()
        self._graphed: dict[int, GraphedExchange] = {}
        self._pool: Any = None
        self._tables: KeyTables | None = None
        self._widened: dict[int, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], Tensor]] = {}
        self._one_by_one: dict[tuple[str, ...], str] = {}  # why the tensors of these buckets are exchanged one by one
        self._uses = BucketUses(tier.worker)

    def average(
        self, specs: tuple[TensorSpec, ...], flat: Tensor, step: int, lane: bool = False
    ) -> Communication[Any] | None:
        """Average tensors that lie one behind another in `flat`, in place; return None where the compressor takes them
        one by one.

        `flat` is the same memory in every step. On a `lane` what is computed is recorded and replayed.
        """
        if flat.dtype in SHORT:
            return self._average_short(specs, flat, step, lane)
        tier = self._tier
        graphed = self._graphed.get(id(specs)) if lane else None
        if graphed is not None and graphed.is_recorded:
            return graphed.replay(tier.moment(step), tier.carry)
        begun = self._begin(specs, flat, tier.moment(step), own=False)
        if begun is None or not lane:
            return None if begun is None else self._run(run_exchange(begun, tier.carry), specs, flat.device)
        self._tables = self._tables or KeyTables(flat.device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graphed = self._graphed.setdefault(id(specs), GraphedExchange(specs, self._tables, self._pool))

        def make(recorded: bool) -> BucketExchange:
            moment = None if recorded else tier.moment(step)
            exchange = self._begin(specs, flat, moment, own=False, tables=self._tables)
            assert exchange is not None
            return exchange

        return self._run(graphed.run(make, tier.moment(step), tier.carry), specs, flat.device)

    def average_once(self, specs: tuple[TensorSpec, ...], flat: Tensor, step: int) -> Communication[None]:
        """Average the tensors of one of the tier's `buckets`, which lie one behind another in `flat`, in place.

        The compressor's memory of them is kept where the rule keeps its state, and nothing else is.
        """
        tier = self._tier
        if not tier.compressor.accepts(specs[0]):
            mean = yield from tier.carry(Reduce(flat, "mean"))
            if mean.data_ptr() != flat.data_ptr():
                flat.copy_(mean)
            return
        if flat.dtype in SHORT:
            values = flat.float()
            yield from _through(self.average_once(tuple(map(widened, specs)), values, step), flat, values)
            return
        names = _names(specs)
        if names not in self._one_by_one and not joins_of(tier.compressor):
            kept = self._flat_memories.of(specs, flat, partial(tier.state_of, x=flat), tier.offloads)
            stay = Stay(list(kept.vectors.values()), flat.device)
            bucket = kept.at(flat, {name: stay[k] for k, name in enumerate(kept.vectors)})
            meet = self._meet(specs, tier.moment(step), own=False)
            exchange = exchange_bucket_of(tier.compressor, bucket, meet)
            if exchange is not None:
                yield from self._run(run_exchange(exchange, tier.carry), specs, flat.device)
            stay.end(changed=exchange is not None)
            self._flat_memories.leave(specs)
            if exchange is not None:
                return
            self._one_by_one[names] = reason(tier.compressor, bucket, meet)
        parts = [part.view(spec.shape) for part, spec in zip(flat.split([s.numel for s in specs]), specs, strict=True)]
        means = yield from tier.average(specs, parts, step)
        torch._foreach_copy_(parts, means)

    def exchange(
        self, specs: tuple[TensorSpec, ...], tensors: Sequence[Tensor], step: int, own: bool
    ) -> Communication[list[Outcome]] | None:
        """Exchange tensors that lie anywhere as one bucket, or return None where the compressor takes them one by
        one."""
        if _names(specs) in self._one_by_one:
            return None
        flat = torch.cat([x.reshape(-1) for x in tensors])
        exchange = self._begin(specs, flat, self._tier.moment(step), own)
        return None if exchange is None else self._outcomes(exchange, specs, flat)

    def counted_apart(
        self, communication: Communication[Any], specs: Sequence[TensorSpec], device: torch.device
    ) -> Communication[Any]:
        """Count a communication that exchanges the tensors of a bucket one by one."""
        use = self._uses.of(specs, device)
        use.one_by_one = use.one_by_one or self._why_one_by_one(specs)
        return use.counted(communication)

    def memory_replaced(self) -> None:
        """Note that tensors have another memory than before."""
        self._flat_memories.forget()
        self._forget_graphs()

    def reports(self) -> list[BucketReport]:
        """Return how each bucket that was compressed has been exchanged so far."""
        refusals = {
            specs: None if each.is_recorded else each.refusal or "not recorded yet"
            for specs, each in self._graphed.items()
        }
        return self._uses.reports(self._tier.label, refusals)

    # ------------------------------------------------------------------------------------------ inside

    def _average_short(
        self, specs: tuple[TensorSpec, ...], flat: Tensor, step: int, lane: bool
    ) -> Communication[Any] | None:
        """Average tensors of 16 bits: they are compressed, and remembered, in float32."""
        if id(specs) not in self._widened:
            self._widened[id(specs)] = specs, tuple(map(widened, specs)), flat.float()
        _, wide, values = self._widened[id(specs)]
        whole = self.average(wide, values, step, lane)
        return None if whole is None else _through(whole, flat, values)

    def _begin(
        self,
        specs: tuple[TensorSpec, ...],
        flat: Tensor,
        moment: Moment | None,
        own: bool,
        tables: KeyTables | None = None,
    ) -> BucketExchange | None:
        """Begin the exchange of a bucket in this step, or for all steps where there is no `moment`."""
        tier, names = self._tier, _names(specs)
        if names in self._one_by_one or joins_of(tier.compressor):
            return None
        bucket = self._flat_memories.of(specs, flat, partial(tier.state_of, x=flat))
        if self._flat_memories.changed:
            self._forget_graphs()  # they compute at the old addresses
        meet = self._meet(specs, moment, own, tables)
        exchange = exchange_bucket_of(tier.compressor, bucket, meet)
        if exchange is None:
            self._one_by_one[names] = reason(tier.compressor, bucket, meet)
        return exchange

    def _meet(
        self, specs: tuple[TensorSpec, ...], moment: Moment | None, own: bool, tables: KeyTables | None = None
    ) -> BucketMeet:
        group = self._tier.group
        return BucketMeet(group.rank, group.size, own, specs, moment, tables, group.compute_alike)

    def _run(
        self, communication: Communication[Any], specs: tuple[TensorSpec, ...], device: torch.device
    ) -> Communication[Any]:
        tier, elements = self._tier, [spec.numel for spec in specs]
        tier.coded("encode", tier.compression, elements)
        own = yield from self._uses.of(specs, device).counted(communication)
        tier.coded("decode", tier.compression, elements)
        return own

    def _outcomes(
        self, exchange: BucketExchange, specs: tuple[TensorSpec, ...], flat: Tensor
    ) -> Communication[list[Outcome]]:
        sent = yield from self._run(run_exchange(exchange, self._tier.carry), specs, flat.device)
        return Outcome(flat, {}, sent).split([spec.shape for spec in specs])

    def _why_one_by_one(self, specs: Sequence[TensorSpec]) -> str:
        if joins_of(self._tier.compressor):
            return f"{self._tier.compression} joins the tensors to one vector"
        alone = "it is one tensor" if len(specs) == 1 else "its tensors are of several types"
        return self._one_by_one.get(_names(specs), alone)

    def _forget_graphs(self) -> None:
        self._graphed.clear()
        self._pool = None  # a memory pool ends with the last of its graphs


def widened(spec: TensorSpec) -> TensorSpec:
    """Return the specification in which a tensor is compressed: float32 for one of 16 bits."""
    return replace(spec, dtype=torch.float32) if spec.dtype in SHORT else spec


def _through(whole: Communication[Any], flat: Tensor, values: Tensor) -> Communication[Any]:
    """Run a communication that averages `values`, which are those of `flat` in another format."""
    values.copy_(flat)
    yield from whole
    flat.copy_(values)


def _names(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    return tuple(spec.name for spec in specs)
