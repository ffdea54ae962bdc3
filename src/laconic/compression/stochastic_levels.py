"""Random rounding to levels, so that the mean is right: QSGD, TernGrad, natural compression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload, Unbiased
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import draw_keys
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, elias
from laconic.compression.payload import pack, unpack
from laconic.kernels.messages import WIDTHS, written
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets, Reduce


@technique(
    "qsgd",
    paper="Alistarh et al., NIPS 2017",
    claims=[Unbiased()],
    evidence="third-party",
    reproduces="qsgd.npz, recorded from GRACE: levels, norm, values of its draws, as `qsgd(64)`, `qsgd(1, bucket=256)`",
    formula="Q(x)_i = |x|₂·sign(x_i)·k/s, k at random a neighbour of s|x_i|/|x|₂",
    worth_trying=["qsgd"],
)
@dataclass(frozen=True)
class QSGD(Codec):
    """Multiples of 1/s of the bucket's norm, rounded up with the probability of the remainder.

    Reading chosen: buckets of 512 and levels of a fixed width, as in the paper's experiments; the norm is l2, as in its
    theory, or the largest magnitude. With `coding=elias` each level is an Elias code and a sign unless it is zero (the
    paper's dense regime): about 3 bits where s is the root of the bucket, in a message whose length depends on the
    values. A bucket that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "elementwise"
    levels: int = knob(7, low=1, high=127, gentler="more", doc="s, the levels above zero: 7 makes 4 bits with the sign")
    bucket: int = knob(512, low=1, doc="elements that share a norm")
    norm: str = knob("l2", choices=("l2", "max"), doc="the norm that levels are shares of")
    coding: str = knob(
        "fixed", choices=("fixed", "elias"), doc="levels of a fixed width, or shorter codes for smaller levels"
    )

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.coding == "elias"

    @property
    def bits(self) -> int:
        return bits.width(2 * self.levels + 1)

    @property
    def unit(self) -> int:
        return math.lcm(self.bucket, 8)

    @property
    def lists(self) -> bool:
        return not self.ragged and self.levels in WIDTHS

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        keys = draw_keys(meets)
        return kernels.encode_levels(xs, errors, self.bucket, self.levels, self.norm, keys, shares)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        return kernels.mean_of_levels(rows, lengths, self.bucket, self.levels, out, shares)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        if self.lists:
            return self.feed_all([flat], None, [meet])
        scales = kernels.norms(flat, self.bucket, self.norm)
        codes = kernels.quantize(flat, scales, self.bucket, self.levels, meet.key())
        if self.ragged:
            return pack(scales, elias.encode_signed(codes.short() - self.levels))
        return pack(bits.pack(codes, self.bits), scales)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        if self.lists:
            return self.means(payload.view(1, -1), [shape.numel()])[0].view(shape)
        decoded = torch.zeros(shape, device=payload.device)
        self.add(decoded, payload, meet)
        return decoded

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        if not total.is_contiguous():
            total += self.decode(payload, total.shape, meet)
            return
        flat = total.view(-1)
        n, buckets = flat.numel(), -(-flat.numel() // self.bucket)
        how = (self.bucket, self.levels)
        if self.ragged:
            scales, packed = unpack(payload, (torch.float32, buckets), (torch.uint8, -1))
            levels = elias.decode_signed(packed, n).float()
            flat += levels * (scales * (1 / self.levels)).repeat_interleave(self.bucket)[:n]
            return
        packed, scales = unpack(payload, (torch.uint8, bits.length(n, self.bits)), (torch.float32, buckets))
        if self.levels == 7:
            kernels.add_levels_of_nibbles(flat, packed, scales, *how)
        else:
            kernels.add_levels(flat, bits.unpack(packed, self.bits, n), scales, *how)

    def variance(self, spec: TensorSpec) -> float | None:
        d, s = min(self.bucket, spec.numel), self.levels
        return min(d / s**2, math.sqrt(d) / s)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        each = elias.length(self.levels + 1) + 1 if self.ragged else self.bits
        return bits.length(spec.numel, each) + 4 * -(-spec.numel // self.bucket)


@technique(
    "terngrad",
    paper="Wen et al., NIPS 2017",
    evidence="third-party",
    reproduces="terngrad.npz, recorded from GRACE: ternary values from its draws, as `terngrad` with one worker",
    formula="Q(x)_i = s·sign(x_i) with chance |x_i|/s, else 0; s = max|x| of all workers, x cut at 2.5σ",
    worth_trying=["terngrad"],
)
@dataclass(frozen=True)
class TernGrad(Compressor):
    """-s, 0 or s, where s is the largest magnitude among all workers, so that ternary digits are added as integers.

    Values are cut at `clip` standard deviations first (0: never), which is the only bias. Workers agree on s; then in
    two hops the owner of a part adds up the ternary digits of all workers, two bits each, and answers with the sums, in
    as many bits as 2N + 1 values take. Parts are multiples of eight values, equal for all owners: a tensor is padded to
    8N⌈n/(8N)⌉ values, which are sent as well. A tensor that contains a value that is not finite decodes to values that
    are not finite.
    """

    clip: float = knob(2.5, low=0, doc="standard deviations beyond which values are cut; 0: nowhere")

    @property
    def meets(self) -> Meets:
        return "scatter"

    @property
    def asks(self) -> tuple[type, ...]:
        return (Reduce, *super().asks)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        n, part = x.numel(), bits.part(x.numel(), meet.size)
        flat = clipped(x.reshape(-1).float(), self.clip)
        (scale,) = yield meet.max(flat.abs().max().view(1))
        digits = kernels.encode_ternaries(flat, scale, meet.key(), meet.size * part)
        sent = kernels.ternaries_of(digits, scale, n)
        received = yield meet.scatter(digits.view(meet.size, -1))
        gathered = yield meet.gather(bits.pack(kernels.sum_of_digits(received, part), bits.width(2 * meet.size)))
        sums = torch.cat([bits.unpack(row, bits.width(2 * meet.size), part).long() for row in gathered])[:n] - meet.size
        mean = sums.float() * (scale / meet.size)
        return Outcome(mean.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        part = bits.part(spec.numel, size)
        return (
            ("reduce", 4),
            ("scatter", size * bits.length(part, 2)),
            ("gather", bits.length(part, bits.width(2 * size))),
        )


def clipped(flat: Tensor, deviations: float) -> Tensor:
    """Return the values cut at so many standard deviations; 0 cuts nothing."""
    if not deviations:
        return flat
    limit = deviations * flat.std(correction=0)
    return torch.where(limit > 0, flat.clamp(-limit, limit), flat)  # equal values, whose deviation is zero, are not cut


@technique(
    "natural_compression",
    aliases=["natural"],
    paper="Horváth et al., MSML 2022",
    claims=[Unbiased(), Payload(lambda spec, c: -(-9 * spec.numel // 8))],
    holds="Theorem 1: second moment at most 9/8, attained at 4/3 of a power of two; 32/9 times fewer bits",
    formula="Q(x)_i = sign(x_i)·a or sign(x_i)·2a, a = 2^⌊log2|x_i|⌋, the latter with chance |x_i|/a - 1",
    worth_trying=["natural_compression"],
)
@dataclass(frozen=True)
class Natural(Codec):
    """The power of two below or above, at random so that the mean is right: a sign and eight bits of exponent.

    Integer arithmetic only: the mantissa over 2²³ is the probability of the next exponent. Numbers too small for a
    normal exponent become zero, the largest exponent is not raised, and what is not finite becomes infinite.
    """

    @property
    def lists(self) -> bool:
        return True

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        return kernels.encode_natural(xs, errors, draw_keys(meets))

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        return written(kernels.mean_of_natural(rows, lengths), out)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return kernels.encode_natural([x.reshape(-1)], None, [meet.key()])

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return kernels.decode_natural(payload, shape.numel()).view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        return 1 / 8

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, 9)
