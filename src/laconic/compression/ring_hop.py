"""A ring all-reduce of encoded messages: on each hop a worker decodes, adds its own part and encodes the sum again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.wrapper import Wrapping
from laconic.registry import named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@technique(
    "ring_hop",
    aliases=["ringhop"],
    paper="Jaghouar et al. (INTELLECT-1), arXiv 2412.01152, 2024",
    formula="N - 1 hops: s ← own chunk + D(received), send C(s) to the next; then C(last sum) to all, over N",
)
@dataclass(frozen=True)
class RingHop(Wrapping):
    """Exchange hop by hop around a ring in place of a gather: the word `ring_hop`, which wraps the codec before it.

    A tensor is cut in N chunks; each goes around the ring, and on every hop it is decoded, added to and encoded again.
    Sums are float32 in memory, and statistics are each hop's own. The worker with a chunk's last sum encodes it once
    for all and decodes it as the others do, so that all hold the same bits. A value is rounded up to N times
    (`two_hop`: twice), and no worker receives more than one message at a time. The bytes are those of an all-reduce.
    """

    transparent: ClassVar[bool] = True

    def objects(self, inner: Compressor) -> str | None:
        if isinstance(inner, Codec) and not inner.ragged:
            return None
        return "a ring carries messages of a known length that are decoded one by one; write int8"

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return InRing(inner)


@dataclass(frozen=True)
class InRing(Compressor):
    """The compressor that a chain with `ring_hop` becomes.

    A worker's own contribution cannot be separated from the sums, so that `sent` is not known.
    """

    inner: Codec

    @property
    def meets(self) -> Meets:
        return "ring"

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        codec, size, rank = self.inner, meet.size, meet.rank
        own = codec.split(x.float(), size)
        total = own[rank]
        for hop in range(1, size):
            received = yield meet.ring_pass(codec.encode(total, meet))
            total = own[rank - hop] + codec.decode(received, total.shape, meet)
        encoded_sums = yield meet.gather(codec.encode(total, meet))
        chunks = torch.stack([codec.decode(payload, total.shape, meet) for payload in encoded_sums])
        ended = chunks.roll(1, dims=0)  # chunk c ended at the worker before the one that began it
        return Outcome((codec.join(ended, x.shape) / size).to(x.dtype), state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        chunk = TensorSpec(spec.name, tuple(self.inner.part(torch.Size(spec.shape), size)), torch.float32)
        each = self.inner.payload_bytes(chunk, size)
        return ("ring", (size - 1) * each), ("gather", each)


named_sentence(
    "intellect1_int8_ring",
    "diloco(period=100) / flat+bucket_means+ring_hop / allreduce",
    axis="sync",
    paper="Jaghouar et al., arXiv 2412.01152, 2024",
    aliases=["intellect1"],
    doc="""DiLoCo across continents: a hundred local steps, then outer gradients around a ring in eight bits a hop.

    Readings chosen: those of `bucket_means` and `ring_hop`. Not here: the original shards a model inside a host, keeps
    several connections per link, orders the ring by bandwidth, and goes on without a worker that has died. In a
    sentence that ends the run, as under any collective; `CodedRing` of `laconic.architecture.elastic` is the ring that
    is built again without the dead, for scripts that average by themselves.
    """,
    holds="100 steps a round, 8 bits of 32: 400 times fewer bytes than data parallel training",
)
