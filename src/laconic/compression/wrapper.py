"""Compressors around another compressor, whose behaviour they keep unless they change it; and the words that make
them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, inner_entries
from laconic.compression.optional import (
    added_memories,
    conserved_of,
    contraction_of,
    cost_of,
    edge_of,
    exchange_bucket_of,
    exchange_rest_of,
    is_decoded_with_memory,
    is_transparent,
    joins_of,
    no_edge,
    prices_of,
    refusal_of_memory,
    ring_bits_of,
    settling_of,
    spread_of,
    takes_factors_of,
    takes_of,
    variance_of,
    wire_of,
)
from laconic.errors import StrategyError
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Edge, Meet, Meets


class Wrapping(Compressor):
    """A word that modifies the chain before it, and compresses nothing by itself."""

    wraps: ClassVar[bool] = True

    def objects(self, inner: Compressor) -> str | None:
        """Return the reason why this word cannot wrap `inner`, or None if it can."""
        return None

    @abstractmethod
    def around(self, inner: Compressor) -> Compressor:
        """Return the compressor that the chain becomes."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError(f"{self.name} wraps what stands before it in a chain; write bf16+ef, for example")

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 0


class Memory(Wrapping):
    """A wrapping word that remembers what messages have left out, and so changes what theory guarantees of a chain."""

    @abstractmethod
    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        """Return what is guaranteed around a compressor of variance ω and contraction δ, or None if nothing is.

        Either is None where the compressor promises none.
        """


@dataclass(frozen=True)
class Wrapper(Compressor):
    """A compressor that delegates everything to an inner one, except what a subclass overrides.

    It implements all of `laconic.compression.optional`. What the inner one promises of its messages (bounds of the
    error, a format, an exchange of all tensors or along edges) is kept only while the messages are the inner one's: a
    subclass with an `exchange` of its own makes no such promise, unless it overrides that too.
    """

    inner: Compressor

    @property
    def _messages_are_inner(self) -> bool:
        return type(self).exchange is Wrapper.exchange

    @property
    def meets(self) -> Meets:
        return self.inner.meets

    @property
    def asks(self) -> tuple[type, ...]:
        return self.inner.asks

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def init(self, spec: TensorSpec) -> State:
        return self.inner.init(spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return self.inner.exchange(x, state, meet)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(spec, size)

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return prices_of(self.inner, spec, size)

    @property
    def settling(self) -> int:
        return settling_of(self.inner)

    @property
    def joins(self) -> bool:
        return joins_of(self.inner)

    @property
    def transparent(self) -> bool:
        return is_transparent(self.inner)

    @property
    def decoded_with_memory(self) -> bool:
        return is_decoded_with_memory(self.inner)

    @property
    def cost(self) -> str:
        return cost_of(self.inner)

    @property
    def conserved(self) -> tuple[str, ...]:
        return conserved_of(self.inner)

    def add_memories(self, entry: str, memories: Sequence[Tensor]) -> Tensor:
        return added_memories(self.inner, entry, memories)

    @property
    def refuses_memory(self) -> str | None:
        return refusal_of_memory(self.inner)

    @property
    def takes(self) -> tuple[str, ...]:
        return takes_of(self.inner)

    @property
    def takes_factors(self) -> bool:
        return takes_factors_of(self.inner)

    def ring_bits(self, size: int) -> int | None:
        return ring_bits_of(self.inner, size)

    @property
    def wire(self) -> torch.dtype | None:
        return wire_of(self.inner) if self._messages_are_inner else None

    def variance(self, spec: TensorSpec) -> float | None:
        return variance_of(self.inner, spec) if self._messages_are_inner else None

    def contraction(self, spec: TensorSpec) -> float | None:
        return contraction_of(self.inner, spec) if self._messages_are_inner else None

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec) if self._messages_are_inner else 0.0

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return exchange_bucket_of(self.inner, bucket, meet) if self._messages_are_inner else None

    def exchange_rest(self, bucket: TensorBucket, rest: Tensor, meet: BucketMeet) -> BucketExchange | None:
        return exchange_rest_of(self.inner, bucket, rest, meet) if self._messages_are_inner else None

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        if not self._messages_are_inner:
            raise no_edge(self)
        return edge_of(self.inner, x, state, meet)


@dataclass(frozen=True)
class StatefulWrapper(Wrapper):
    """A wrapper with state of its own beside the inner one's, whose entries are prefixed with `inner.`."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The own state entries that are conserved."""
        return ()

    @abstractmethod
    def begin(self, spec: TensorSpec) -> State:
        """Return the own state before the first step."""

    @property
    def conserved(self) -> tuple[str, ...]:
        return *self.kept, *within(dict.fromkeys(conserved_of(self.inner)))

    def add_memories(self, entry: str, memories: Sequence[Tensor]) -> Tensor:
        return added_memories(self.inner, entry.removeprefix("inner."), memories)

    def init(self, spec: TensorSpec) -> State:
        return {**self.begin(spec), **within(self.inner.init(spec))}


def within(state: dict[str, Any]) -> dict[str, Any]:
    """Return the inner compressor's state with the prefix under which it is kept."""
    return {f"inner.{key}": value for key, value in state.items()}


def inner_of(state: State) -> State:
    """Return the inner compressor's part of a state, without the prefix."""
    return inner_entries(state)
