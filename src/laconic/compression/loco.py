"""LoCo: an error memory of one byte a value, for gradients of four bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.eight_bits import CastInt8
from laconic.compression.error_feedback import ErrorFeedback, Remembering
from laconic.compression.optional import conserved_of, refusal_of_memory
from laconic.compression.owner_rows import ToOwners, row_layout, wide
from laconic.compression.raw import Raw
from laconic.compression.wrapper import Wrapper, Wrapping
from laconic.kernels import BlockFormat
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_BLOCK = 1024  # values of the memory that share a scale


@technique(
    "loco",
    paper="Xie, Lin, Toh, Zhou, arXiv 2407.04480, IEEE TPAMI 2025",
    formula="v = x + e, send C(v), e ← int8(e + b·(v - C(v) - e)), and 0 every so many steps",
)
@dataclass(frozen=True)
class LoCo(Wrapping):
    """Error feedback with an 8-bit memory that follows slowly and is reset now and then: strided_bits+loco.

    The memory is integers of eight bits in blocks with a scale each. It is also reset when the number of workers
    changes. With `blend` 1, `bits` 32 and `reset` 0 it is error feedback. Reading chosen: scales are the largest
    magnitudes of blocks of 1,024; how far the memory moves and how long it lasts are knobs.
    """

    blend: float = knob(0.2, above=0, high=1, doc="how far the memory moves towards the new error")
    bits: int = knob(8, choices=(8, 32), gentler="more", doc="bits of a value in the memory")
    reset: int = knob(1024, low=0, doc="steps after which the memory is reset; 0: never")

    @property
    def codec(self) -> Codec:
        """The codec of the memory."""
        return CastInt8(block=_BLOCK) if self.bits == 8 else Raw()

    def objects(self, inner: Compressor) -> str | None:
        return refusal_of_memory(inner)

    def around(self, inner: Compressor) -> Compressor:
        return ShortMemory(Remembering(inner, ErrorFeedback(low_pass=self.blend)), self)


@dataclass(frozen=True)
class ShortMemory(Wrapper):
    """The compressor that a chain with `loco` becomes: error feedback whose memory is encoded between steps."""

    how: LoCo

    @property
    def refuses_memory(self) -> str | None:
        return "it has a memory of its own; write strided_bits+loco"

    @property
    def conserved(self) -> tuple[str, ...]:
        return tuple(key for key in conserved_of(self.inner) if key != "error")

    def init(self, spec: TensorSpec) -> State:
        length = self.how.codec.payload_bytes(spec, 1)
        state = {key: value for key, value in self.inner.init(spec).items() if key != "error"}
        counts = {key: torch.zeros((), dtype=torch.int64) for key in ("age", "size")}
        return state | counts | {"codes": torch.zeros(length, dtype=torch.uint8)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        age, size, codes = int(state["age"]), int(state["size"]), state["codes"]
        rest = {key: value for key, value in state.items() if key not in ("age", "size", "codes")}
        if size != meet.size:
            codes, age = torch.zeros_like(codes), 0
        layout = self._rows_layout(x)
        if layout is None:
            outcome = yield from self._general(x.to(wide(x)), rest, codes, meet)
        else:
            outcome = yield from self._fused(x, rest, codes, layout, meet)
        age += 1
        if self.how.reset and age >= self.how.reset:
            outcome.state["codes"], age = torch.zeros_like(codes), 0
        # Counts stay in the host's memory: whoever reads them does not wait for a GPU.
        counts = {"age": torch.tensor(age), "size": torch.tensor(meet.size)}
        return Outcome(outcome.result, outcome.state | counts, outcome.sent)

    def _rows_layout(self, x: Tensor) -> BlockFormat | None:
        """Return how rows for owners are written, where memory and messages are blocks that one hot loop writes."""
        inside = self.inner.inner if isinstance(self.inner, Remembering) else None
        if not isinstance(inside, ToOwners) or x.ndim != 2 or self.how.bits != 8:
            return None
        layout = row_layout(inside.inner)
        return None if layout is None or layout.stochastic else layout

    def _fused(self, x: Tensor, rest: State, codes: Tensor, layout: BlockFormat, meet: Meet) -> Exchange:
        """Exchange rows in as few passes over memory as the hot loop has."""
        assert isinstance(self.inner, Remembering) and isinstance(self.inner.inner, ToOwners)
        kept = BlockFormat("int8", "float32", _BLOCK)
        payloads, codes = kernels.feed_short_memory(x, codes, layout, kept, self.how.blend)
        mean = yield from self.inner.inner.scattered(payloads, x, meet)
        return Outcome(mean, rest | {"codes": codes})

    def _general(self, x: Tensor, rest: State, codes: Tensor, meet: Meet) -> Exchange:
        codec = self.how.codec
        error = codec.decode(codes.clone(), x.shape, meet).to(x.dtype)
        outcome = yield from self.inner.exchange(x, rest | {"error": error}, meet)
        left = outcome.state.pop("error")
        codes = codec.encode(left.float(), meet)
        return Outcome(outcome.result, outcome.state | {"codes": codes}, outcome.sent)


named_sentence(
    "loco_adaptor",
    "bsp / strided_bits(4, 128)+two_hop(dense=true)+loco / allreduce",
    axis="compression",
    paper="Xie, Lin, Toh, Zhou, arXiv 2407.04480, IEEE TPAMI 2025",
    doc="""Four bits a value to the owner of a part, who averages in float32, and a memory of eight bits at the worker.

    Owners answer densely, in the place of sharded training's gather of parameters; the optimizer stays as it is.
    Readings chosen: those of `loco`.
    """,
    formula="v = x + e, q = 4 bits of v, e ← int8(e + 0.2(v - q - e)); owners answer mean q in float32",
)
