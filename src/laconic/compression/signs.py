"""Signs: one bit a coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.kernels.messages import written
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@technique(
    "sign_sgd",
    aliases=["signsgd", "sign"],
    paper="Bernstein et al., ICML 2018; majority vote: ICLR 2019",
    evidence="published",
    reproduces="Karimireddy et al.: on ε|x + y| + |x - y| from (1, 1), x + y stays 2 and the loss never falls",
    formula="sign(Σ_m sign(x_m))",
    worth_trying=["sign_sgd"],
)
@dataclass(frozen=True)
class SignSGD(Compressor):
    """Each worker sends the signs of its gradient; the result is the sign of the majority.

    Two hops: the owner of a part counts votes and answers with one bit each. Each way that is N·⌈n/(8N)⌉ bytes for a
    tensor among N workers: a bit a value, where 8N divides n; else the parts, which are equal and whole bytes, are
    padded by less than N bytes in all. Magnitudes are never sent: the learning rate carries all scale. Without memory
    it need not converge (see `ef_signsgd`); NaN votes against. Reading chosen: zero counts as positive, and so does a
    tie, since a bit has no third value.
    """

    @property
    def meets(self) -> Meets:
        return "scatter"

    @property
    def refuses_memory(self) -> str | None:
        return "signs without a scale are no contraction, so that the memory would grow for ever; write ef_signsgd"

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        n, part = x.numel(), bits.part(x.numel(), meet.size)
        packed = kernels.pack_signs(x.reshape(-1).float())
        sent = kernels.signs_of(packed, n).view(x.shape).to(x.dtype)
        ballots = torch.nn.functional.pad(packed, (0, meet.size * part // 8 - packed.numel())).view(meet.size, -1)
        received = yield meet.scatter(ballots)
        gathered = yield meet.gather(kernels.vote(received))
        result = kernels.signs_of(gathered.reshape(-1), n).view(x.shape).to(x.dtype)
        return Outcome(result, state, sent)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        each = bits.part(spec.numel, size) // 8
        return ("scatter", size * each), ("gather", each)


@technique(
    "scaled_sign",
    paper="Karimireddy et al., ICML 2019",
    claims=[Payload(lambda spec, c: -(-spec.numel // 8) + 4)],
    holds="|C(v) - v|² = (1 - |v|₁²/(d|v|₂²))|v|², an equality: 1/50 for (3, 4)",
    formula="C(x) = (|x|₁/n)·sign(x)",
    worth_trying=["scaled_sign+ef"],
)
@dataclass(frozen=True)
class ScaledSign(Codec):
    """Signs and the mean of the magnitudes: a contraction, which error feedback makes converge (`ef_signsgd`).

    |C(v) - v|² is (1 - |v|₁²/(n|v|₂²))|v|², exactly. Zero counts as positive.
    """

    cost: ClassVar[str] = "reduce"

    @property
    def unit(self) -> int:
        return 8

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        total = kernels.bucket_scales(flat, flat.numel(), "l1")
        return pack(kernels.pack_signs(flat), total / torch.full_like(total, flat.numel()))

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
        return kernels.encode_signs(xs, [torch.zeros_like(x) for x in xs] if errors is None else errors)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        return kernels.mean_of_signs(rows, lengths, out)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        total = torch.zeros(shape, device=payload.device)
        self.add(total, payload, meet)
        return total

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        packed, scale = unpack(payload, (torch.uint8, bits.length(total.numel(), 1)), (torch.float32, 1))
        kernels.add_signs(total.view(-1), packed, scale[0])

    def contraction(self, spec: TensorSpec) -> float | None:
        return 1 / spec.numel  # attained by a vector with one non-zero coordinate; Gaussian ones have 2/π

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, 1) + 4


named_sentence(
    "ef_signsgd",
    "bsp / scaled_sign+error_feedback(inside=true) / allreduce",
    axis="compression",
    aliases=["ef_sign_sgd"],
    paper="Karimireddy et al., ICML 2019",
    evidence="third-party",
    reproduces="ef_signsgd.npz, recorded from GRACE: scale, message and memory, as `ef_signsgd` with one worker",
    doc="""Signs with one scale a tensor, and an error memory in changes of parameters for what they lose.

    Reading chosen: with several workers each has a memory, and messages are averaged.
    """,
    formula="p = lr·g + e, Δ = (|p|₁/n)·sign(p), e ← p - Δ, x ← x - mean Δ",
)


@technique(
    "one_bit",
    paper="Seide et al., Interspeech 2014",
    claims=[Payload(lambda spec, c: -(-spec.numel // 8) + 8 * c.columns(torch.Size(spec.shape)))],
    formula="Q(x)_ij = mean of column j where it is ≥ 0 if x_ij ≥ 0, else mean of where it is not",
    worth_trying=["one_bit+ef"],
)
@dataclass(frozen=True)
class OneBit(Codec):
    """One bit a coordinate, and for each column the means of its negative and of its other values.

    The reading chosen for layers other than fully connected ones: a column is one input of the layer, all its outputs
    (the first dimension) and whatever stands behind; a vector is one column. With `per=tensor` there is one pair.
    """

    cost: ClassVar[str] = "reduce"
    per: str = knob("column", choices=("column", "tensor"), doc="what shares a pair of means")

    def columns(self, shape: torch.Size) -> int:
        """Return the number of columns of a tensor of this shape."""
        return shape[1:].numel() if self.per == "column" and len(shape) > 1 else 1

    def part(self, shape: torch.Size, size: int) -> torch.Size:
        """Return the shape of an owner's part, which is full columns."""
        columns = self.columns(shape)
        return torch.Size([shape.numel() // columns, -(-columns // size)]) if columns > 1 else super().part(shape, size)

    def split(self, x: Tensor, size: int) -> Tensor:
        if (columns := self.columns(x.shape)) == 1:
            return super().split(x, size)
        part = self.part(x.shape, size)
        filled = torch.nn.functional.pad(x.reshape(-1, columns), (0, size * part[1] - columns))
        return filled.view(-1, size, part[1]).transpose(0, 1).contiguous()

    def filled(self, part: Tensor, real: int) -> Tensor:
        """Pad a part of a single column with the mean of its values that are not negative, which keeps that mean.

        A padding column, of a matrix, has means of its own.
        """
        if part.dim() > 1 or not 0 < real < part.numel():
            return part
        own = part[:real]
        mean = own.clamp(min=0).sum() / (own >= 0).sum().clamp(min=1)
        return torch.cat([own, mean.expand(part.numel() - real)])

    def join(self, parts: Tensor, shape: torch.Size) -> Tensor:
        if (columns := self.columns(shape)) == 1:
            return super().join(parts, shape)
        return parts.transpose(0, 1).reshape(parts.shape[1], -1)[:, :columns].reshape(shape)

    @property
    def lists(self) -> bool:
        return True

    def of_shapes(self, shapes: Sequence[tuple[int, ...]]) -> Codec:
        return _OneBitOfShapes(self.per, tuple(self.columns(torch.Size(shape)) for shape in shapes))

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        return self.of_shapes([tuple(x.shape) for x in xs]).feed_all(xs, errors, meets)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        return self.of_shapes([(n,) for n in lengths]).means(rows, lengths, out)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return kernels.encode_columns([x.reshape(-1)], None, [self.columns(x.shape)])

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        if not error.is_contiguous():
            return super().feed(x, error, meet)
        return kernels.encode_columns([x.reshape(-1)], [error.view(-1)], [self.columns(x.shape)])

    def mean(self, rows: Sequence[Tensor] | Tensor, like: Tensor, meet: Meet) -> Tensor:
        return self._mean(rows if isinstance(rows, Tensor) else torch.stack(list(rows)), like.shape)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return self._mean(payload.view(1, -1), shape)

    def _mean(self, rows: Tensor, shape: torch.Size) -> Tensor:
        columns = self.columns(shape)
        return kernels.mean_of_columns(rows, [(shape.numel() // columns, columns)])[0].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, 1) + 8 * self.columns(torch.Size(spec.shape))


@dataclass(frozen=True)
class _OneBitOfShapes(OneBit):
    """One bit a coordinate for lists of flat tensors of known widths."""

    widths: tuple[int, ...] = ()

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        return kernels.encode_columns(xs, errors, self.widths)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        shapes = [(n // w, w) for n, w in zip(lengths, self.widths, strict=True)]
        return written(kernels.mean_of_columns(rows, shapes), out)


named_sentence(
    "one_bit_sgd",
    "bsp / one_bit+two_hop(memory=true)+error_feedback / allreduce",
    axis="compression",
    paper="Seide et al., Interspeech 2014",
    evidence="third-party",
    reproduces="one_bit_sgd.npz, recorded from GRACE: bits, means and memory, as `one_bit_sgd`; the first hop alone",
    doc="""One bit a coordinate with a memory on both hops: at the worker, and at the owner of each stripe of columns.

    Each way N parts of ⌈r·c/8⌉ + 8c bytes are sent for a matrix of r rows, where c is the N-th part of its columns,
    rounded up: a bit a value and eight bytes a column, where N divides the columns. Of a vector each owner has the N-th
    part, rounded up, with a pair of means of its own; padding does not count in them. AdaGrad, growing batches and
    double buffering are left to other words. Readings chosen: columns as in `one_bit`, and no dense start (phases write
    one).
    """,
    formula="v = g + e, q = the column's mean above or below 0, e ← v - q; owners do the same with mean q",
)
