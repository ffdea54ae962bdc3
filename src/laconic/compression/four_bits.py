"""Four-bit integers in blocks that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.claims import Payload
from laconic.compression.block_codec import BlockCodec
from laconic.kernels import BlockFormat
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec


@technique(
    "cast_int4",
    aliases=["int4"],
    paper="Wang, Qin, Jacobs et al. (ZeRO++), arXiv 2306.10209, ICLR 2024",
    claims=[Payload(lambda spec, c: -(-spec.numel // 2) + 4 * -(-spec.numel // c.block))],
    formula="Q(x)_i = (s/7)·round(7·x_i/s), s = max|block| in float32",
    worth_trying=["cast_int4+ef"],
)
@dataclass(frozen=True)
class CastInt4(BlockCodec):
    """Integers of four bits, from -7 to 7, with a float32 scale for each block of values that follow each other.

    The nearest one is taken, so that no value is further off than half a step of its block, which is 1/7 of its largest
    magnitude. The last block may be shorter. A block that contains a value that is not finite decodes to values that
    are not finite.
    """

    cost: ClassVar[str] = "reduce"
    block: int = knob(128, low=2, doc="values that share a scale")

    @property
    def unit(self) -> int:
        return self.block * (1 + self.block % 2)  # whole blocks in whole bytes

    @property
    def layout(self) -> BlockFormat:
        return BlockFormat("int4", "float32", self.block)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.layout.message_bytes(spec.numel)
