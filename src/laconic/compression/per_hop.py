"""Sums of encoded messages: on each hop a worker decodes, adds its own part and encodes the sum again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.collective.chunk_memory import coded_bytes
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.wrapper import Wrapping
from laconic.registry import named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import CodedSum, Coding, Meet, Meets


@technique(
    "per_hop",
    aliases=["ring_hop"],
    paper="Jaghouar et al. (INTELLECT-1), arXiv 2412.01152, 2024; Cowan et al. (MSCCLang), ASPLOS 2023",
    formula="each hop: s ← own chunk + D(received), send C(s) to the next; then C(last sum) to all, over N",
)
@dataclass(frozen=True)
class PerHop(Wrapping):
    """Encode on every hop of an all-reduce in place of a gather: the word `per_hop`, which wraps the codec before it.

    The all-reduce is a ring, or any program of sends: `bsp / int8+per_hop / collective(hierarchical)`. A chunk is
    decoded, added to and encoded again by every worker on its way. Sums are float32 in memory, and statistics are each
    hop's own. Workers with a chunk's last sum encode it in one way and decode it as the others do, so that all hold the
    same bits. A value is rounded up to N times on a ring (`two_hop`: twice), less often in a tree; nobody receives more
    messages at a time than the program says. The bytes are the program's, with encoded chunks.
    """

    transparent: ClassVar[bool] = True

    def objects(self, inner: Compressor) -> str | None:
        if not isinstance(inner, Codec) or inner.ragged:
            return "an all-reduce carries messages of a known length that are decoded one by one; write int8"
        if any(getattr(type(inner), name) is not getattr(Codec, name) for name in ("part", "split", "join")):
            return "an all-reduce cuts vectors, and this codec encodes whole columns; write scaled_sign"
        return None

    def around(self, inner: Compressor) -> Compressor:
        assert isinstance(inner, Codec)
        return OnEveryHop(inner)


@dataclass(frozen=True)
class OnEveryHop(Compressor):
    """The compressor that a chain with `per_hop` becomes.

    A worker's own contribution cannot be separated from the sums, so that `sent` is not known.
    """

    inner: Codec

    @property
    def meets(self) -> Meets:
        return "reduce"

    @property
    def asks(self) -> tuple[type, ...]:
        return (CodedSum,)

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        own = x.reshape(-1).to(torch.float32, copy=True)
        total = yield meet.coded_sum(own, CodeOfHops(self.inner, meet))
        return Outcome((total / meet.size).view(x.shape).to(x.dtype), state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a whole vector that is cut in as many chunks as there are workers."""
        return sum(coded_bytes(Coding((CodeOfHops(self.inner),), (spec.numel,)), [1.0] * size))


@dataclass(frozen=True)
class CodeOfHops:
    """How a codec writes the messages of an all-reduce."""

    codec: Codec
    meet: Any = None
    """The meeting whose random numbers are drawn; none where the codec draws none."""

    @property
    def unit(self) -> int:
        return self.codec.unit

    def nbytes(self, numel: int) -> int:
        return self.codec.payload_bytes(TensorSpec("", (numel,), torch.float32), 2)

    def encode(self, part: Tensor, step: int | None) -> Tensor:
        return self.codec.encode(part, HopMeet(self.meet, step))  # type: ignore[arg-type]  # a Meet by delegation

    def decode(self, message: Tensor, numel: int) -> Tensor:
        return self.codec.decode(message, torch.Size([numel]), self.meet)


@dataclass(frozen=True)
class HopMeet:
    """The meeting of one step of a program, in which all workers draw the same numbers: those that hold the same sum
    write the same message."""

    meet: Meet
    hop: int | None

    def key(self, what: str = "", *, shared: bool = False) -> int:
        return self.meet.key(what if shared else f"{what}/hop {self.hop}", shared=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.meet, name)


named_sentence(
    "intellect1_int8_ring",
    "diloco(period=100) / flat+bucket_means+per_hop / allreduce",
    axis="sync",
    paper="Jaghouar et al., arXiv 2412.01152, 2024",
    aliases=["intellect1"],
    doc="""DiLoCo across continents: a hundred local steps, then outer gradients around a ring in eight bits a hop.

    Readings chosen: those of `bucket_means` and `per_hop`. Not here: the original shards a model inside a host, keeps
    several connections per link, orders the ring by bandwidth, and goes on without a worker that has died. In a
    sentence that ends the run, as under any collective; `CodedRing` of `laconic.architecture.elastic` is the ring that
    is built again without the dead, for scripts that average by themselves.
    """,
    holds="100 steps a round, 8 bits of 32: 400 times fewer bytes than data parallel training",
)
