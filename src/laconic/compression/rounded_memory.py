"""An error memory of fewer bits: rounded at random between steps, so that what is forgotten is right in the mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, draw_keys
from laconic.compression.optional import exchange_bucket_of
from laconic.compression.wrapper import Wrapper
from laconic.kernels.draws import key_of
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

BLOCK = 256
"""The values of a memory of 8 bits that share a scale."""


class Format(ABC):
    """How the values of several memories lie in one flat tensor."""

    dtype: ClassVar[torch.dtype]

    @abstractmethod
    def length(self, numel: int) -> int:
        """Return how many elements a memory of so many values has."""

    @abstractmethod
    def numel(self, length: int) -> int:
        """Return how many values a memory of so many elements has."""

    @abstractmethod
    def write(self, errors: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
        """Return these flat float32 tensors as memories, one behind another, rounded by draws under their keys."""

    @abstractmethod
    def read(self, memories: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the values of such memories, of so many values each, one behind another in float32."""


class _BFloat16(Format):
    dtype = torch.bfloat16

    def length(self, numel: int) -> int:
        return numel

    def numel(self, length: int) -> int:
        return length

    def write(self, errors: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
        return kernels.round_randomly(errors, keys)

    def read(self, memories: Tensor, lengths: Sequence[int]) -> Tensor:
        return memories.float()


class _Int8(Format):
    """Multiples of 1/127 of the largest magnitude of a block, and behind them the blocks' scales."""

    dtype = torch.uint8

    def length(self, numel: int) -> int:
        return numel + 4 * -(-numel // BLOCK)

    def numel(self, length: int) -> int:
        return length - 4 * -(-length // (BLOCK + 4))

    def write(self, errors: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
        return kernels.encode_levels(errors, None, BLOCK, 127, "max", keys)

    def read(self, memories: Tensor, lengths: Sequence[int]) -> Tensor:
        found = kernels.mean_of_levels(memories[None], lengths, BLOCK, 127)
        return found[0] if len(found) == 1 else torch.cat(found)


FORMATS: dict[str, Format] = {"bf16": _BFloat16(), "int8": _Int8()}


@dataclass(frozen=True)
class RoundedMemory(Wrapper):
    """Error feedback, the inner compressor, whose memory lies in a shorter format between steps."""

    precision: str

    @property
    def _format(self) -> Format:
        return FORMATS[self.precision]

    def init(self, spec: TensorSpec) -> State:
        begun = torch.zeros(self._format.length(spec.numel), dtype=self._format.dtype)
        return self.inner.init(spec) | {"error": begun.view(spec.shape) if len(begun) == spec.numel else begun}

    def add_memories(self, entry: str, memories: Sequence[Tensor]) -> Tensor:
        if entry != "error":
            return super().add_memories(entry, memories)
        lengths = [self._format.numel(memories[0].numel())]
        total = sum((self._format.read(m.reshape(-1), lengths) for m in memories), start=torch.zeros(()))
        assert isinstance(total, Tensor)
        return self._format.write([total], [key_of("memories of several workers")]).view(memories[0].shape)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        kept = state["error"]
        error = self._format.read(kept.reshape(-1), [x.numel()]).view(x.shape).to(x.dtype)
        outcome = yield from self.inner.exchange(x, state | {"error": error}, meet)
        left = outcome.state["error"].reshape(-1).float()
        written = self._format.write([left], [meet.key("memory")]).view(kept.shape)
        return Outcome(outcome.result, outcome.state | {"error": written}, outcome.sent)

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        if bucket.flat.dtype != torch.float32:
            return None
        kept = bucket.vectors.get("error")
        if kept is None:
            packed = bucket.lists["error"]
            assert isinstance(packed, kernels.Packed)
            kept = packed.flat
        error = torch.empty_like(bucket.flat)
        vectors = {key: value for key, value in bucket.vectors.items() if key != "error"} | {"error": error}
        lists = {key: value for key, value in bucket.lists.items() if key != "error"}
        inner = TensorBucket(bucket.specs, bucket.flat, vectors, lists, bucket.buffers, bucket.facts)
        exchange = exchange_bucket_of(self.inner, inner, meet)
        return None if exchange is None else self._exchange_bucket(exchange, inner, kept, meet)

    def _exchange_bucket(
        self, exchange: BucketExchange, inner: TensorBucket, kept: Tensor, meet: BucketMeet
    ) -> BucketExchange:
        inner.vectors["error"].copy_(self._format.read(kept, inner.lengths))
        own = yield from exchange
        kept.copy_(self._format.write(inner.memory("error"), draw_keys(meet.each(), "memory")))
        return own
