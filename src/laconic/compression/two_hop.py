"""Two hops: every worker owns a part, averages all workers' messages for it, and sends the encoded mean to all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, is_changed_below
from laconic.compression.codec import Codec
from laconic.compression.error_feedback import counted
from laconic.compression.optional import spread_of
from laconic.compression.owned_parts import OwnedParts
from laconic.compression.raw import Raw
from laconic.compression.wrapper import Wrapping
from laconic.kernels.messages import written
from laconic.language.word import Word
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@technique(
    "two_hop",
    aliases=["twohop"],
    paper="Seide et al., Interspeech 2014; Tang et al. (1-bit Adam), ICML 2021",
    formula="owner j: y_j = C(mean_i C(part j of x_i)); result y_1, …, y_N joined",
)
@dataclass(frozen=True)
class TwoHop(Wrapping):
    """Exchange in two hops in place of a gather: the word `two_hop`, which wraps the codec before it.

    Each worker owns 1/N of a tensor: it receives all workers' messages for its part, averages them in float32, encodes
    the mean again and sends it to all. The bytes are an all-reduce's, 2(N-1)/N of the payload, however many workers
    there are. With `memory` the owner keeps what its second message left out; with `dense` that message is float32, as
    where the owner of a shard gathers parameters instead.
    """

    memory: bool = knob(False, doc="whether owners of parts keep an error memory of their own")
    dense: bool = knob(False, doc="whether owners answer in float32")

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, Codec) and not inner.ragged:
            return None
        return "two hops carry messages of a known length that are decoded one by one; write int8"

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return InTwoHops(inner, self)


def in_two_hops(chain: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """Return a chain whose codec's messages go in two hops; None where they do already, or cannot."""
    behind = next((place for place, word in enumerate(chain, 1) if not word.technique.wraps), 0)
    codec = chain[behind - 1].make() if behind else None
    if codec is None or any(word.name == TwoHop.name for word in chain) or TwoHop().objects(codec) is not None:
        return None
    return (*chain[:behind], Word(TwoHop.name), *chain[behind:])


@dataclass(frozen=True)
class InTwoHops(Compressor):
    """The compressor that a chain with `two_hop` becomes.

    The owner's memory has the tensor's shape, so that it can be split again when the number of workers changes: what
    lies outside a worker's part is added to its next message. Around a codec whose variance ω is above 1 such a memory
    would grow for ever: there an owner's message counts 1/(1+ω), as in `Remembering`.
    """

    inner: Codec
    how: TwoHop

    @property
    def meets(self) -> Meets:
        return "scatter"

    @property
    def conserved(self) -> tuple[str, ...]:
        return ("owner",) if self.how.memory else ()

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)

    def _share(self, spec: TensorSpec) -> float:
        """Return the share of an owner's decoded message that everybody applies."""
        return counted(self.inner, spec) if self.how.memory and not self.how.dense else 1.0

    def init(self, spec: TensorSpec) -> State:
        return {"owner": torch.zeros(spec.shape)} if self.how.memory else {}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        codec, size, single = self.inner, meet.size, x.float()
        back: Codec = Raw() if self.how.dense else codec
        share = self._share(TensorSpec("", tuple(x.shape), x.dtype))
        kept: Tensor | None = None
        outside: Tensor | float = (
            0.0  # an earlier owner's memory outside of this part, after the number of workers has changed
        )
        if self.how.memory:
            owned = codec.split(state["owner"], size)
            kept = owned[meet.rank].clone()
            owned[meet.rank] = 0
            outside = size * codec.join(owned, x.shape)  # an owner's memory is of the mean, not of one worker's share
            single = single + outside
        rows = codec.split(single, size)
        each = rows[0].numel()
        real = [min(max(x.numel() - owner * each, 0), each) for owner in range(size)]
        encoded = torch.stack([codec.encode(codec.filled(row, n), meet) for row, n in zip(rows, real, strict=True)])
        received = yield meet.scatter(encoded.clone())
        mean = codec.mean(received, rows[0], meet)
        if kept is not None:
            mean += kept
        mean = codec.filled(mean, real[meet.rank])
        answer = back.encode(mean, meet)
        if kept is not None:
            owned = torch.zeros_like(rows)
            owned[meet.rank] = mean - share * back.decode(answer, mean.shape, meet)
            state = {"owner": codec.join(owned, x.shape)}
        parts = yield meet.gather(answer)
        result, sent = (
            codec.join(torch.stack([way.decode(p, mean.shape, meet) for p in payloads]), x.shape).to(x.dtype)
            for way, payloads in ((back, parts), (codec, encoded))
        )
        return Outcome(result * share, state, sent - outside)

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        codec = self.inner
        changed = ("part", "split", "join", "filled")
        own_parts = any(getattr(type(codec), name) is not getattr(Codec, name) for name in changed)
        if not codec.encodes_lists or own_parts or bucket.flat.dtype != torch.float32:
            return None
        if is_changed_below(codec, "mean", "means"):
            return None
        if any(self._share(spec) < 1 for spec in bucket.specs):
            return None
        return self._exchange_bucket(bucket, meet)

    def _exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange:
        codec, size = self.inner, meet.size
        parts: OwnedParts = bucket.placed(f"parts of {size}", lambda: OwnedParts(bucket, codec.unit, size))
        kept: list[Tensor] | None = None
        outside: Tensor | None = None
        if self.how.memory:
            kept, outside = parts.taken(bucket.vectors["owner"], meet.rank)
            bucket.flat.add_(outside)
        encoded = codec.feed_all(parts.inputs(), None, meet.each(size))
        own = parts.joined(codec.means(encoded.view(1, -1), parts.all_lengths)) if meet.own else None
        if own is not None and outside is not None:
            own.sub_(outside)
        received = yield meet.scatter(encoded.view(size, -1))
        means = list(parts.means)
        codec.means(received, parts.lengths, parts.means)
        if kept is not None:
            torch._foreach_add_(means, kept)
        dense = self.how.dense
        answer = parts.mean.clone().view(torch.uint8) if dense else codec.feed_all(parts.means, None, meet.each())
        if kept is not None:
            sent = means if dense else codec.means(answer.view(1, -1), parts.lengths)
            parts.keep(bucket.vectors["owner"], meet.rank, torch._foreach_sub(means, sent))
        gathered = yield meet.gather(answer)

        def decode() -> None:
            if dense:
                written(list(gathered.view(torch.float32).view(-1).split(parts.all_lengths)), parts.results)
            else:
                codec.means(gathered.reshape(1, -1), parts.all_lengths, parts.results)
            parts.store()

        meet.common(gathered, bucket.flat, decode)
        return own

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        part = TensorSpec(spec.name, tuple(self.inner.part(torch.Size(spec.shape), size)), torch.float32)
        each = self.inner.payload_bytes(part, size)
        return ("scatter", size * each), ("gather", 4 * part.numel if self.how.dense else each)
