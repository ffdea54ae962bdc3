"""Equal buckets around the mean, each decoded as the mean of its values: the quantiser of outer gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_FINE = 2**32  # the parts of a share that are counted


def bucketed(flat: Tensor, count: int, deviations: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return each value's bucket, the buckets' means less the mean of all, and that mean.

    The `count` equal buckets reach `deviations` standard deviations to either side of the mean; what lies beyond falls
    into the outermost ones. Computed in shares of the largest magnitude, so that no square overflows.
    """
    codes, means, middle = bucketed_rows(flat[None], count, deviations)
    return codes[0], means[0], middle[0]


def bucketed_rows(rows: Tensor, count: int, deviations: float) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `bucketed` with each of several rows. Sums are of whole numbers, so that they are the same in any order in
    which a GPU's threads add."""
    most = rows.abs().amax(dim=1, keepdim=True)
    shares = rows / most.where(most != 0, 1)
    middle = shares.mean(dim=1, keepdim=True)
    centred = shares - middle
    step = (2 * deviations / count) * centred.square().mean(dim=1, keepdim=True).sqrt()
    places = torch.where(step > 0, centred / step, 0.0).nan_to_num(0.0)
    codes = (places + count / 2).floor().clamp(0, count - 1).long()
    own = (codes + count * torch.arange(len(rows), device=rows.device)[:, None]).view(-1)
    inside = torch.zeros(len(rows) * count, dtype=torch.int64, device=rows.device)
    inside.index_add_(0, own, torch.ones_like(own)).clamp_(min=1)
    whole = (centred.double() * _FINE).nan_to_num(0.0, 0.0, 0.0).round().long()
    sums = torch.zeros_like(inside).index_add_(0, own, whole.view(-1))
    means = (sums.double() / (inside * _FINE)).float()
    return codes, most * means.view(-1, count), (most * middle).view(-1)


@technique(
    "bucket_means",
    paper="Jaghouar et al. (INTELLECT-1), arXiv 2412.01152, 2024",
    formula="Q(x)_i = mean of what falls into its bucket, of 256 equal ones over µ ± 6σ",
    worth_trying=["bucket_means"],
)
@dataclass(frozen=True)
class BucketMeans(Codec):
    """A few bits a value: the number of its bucket, of equal ones around the mean, and a table of the buckets' means.

    A bucket's mean is the best value to decode it as, so that nothing grows; what lies beyond the outermost buckets is
    decoded as their means. 2^bits float32 are sent with a tensor: 1 KiB at eight bits. A tensor that contains a value
    that is not finite decodes to values that are not finite. Reading chosen: six standard deviations to either side, as
    reported (an earlier program: three).
    """

    cost: ClassVar[str] = "reduce"
    bits: int = knob(8, low=1, high=8, gentler="more", doc="bits of a bucket's number")
    deviations: float = knob(6.0, above=0, doc="standard deviations that buckets reach to either side of the mean")

    @property
    def count(self) -> int:
        """The number of buckets."""
        return 1 << self.bits

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        codes, means, middle = bucketed(x.reshape(-1), self.count, self.deviations)
        return pack(means + middle, bits.pack(codes, self.bits))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n = shape.numel()
        parts = ((torch.float32, self.count), (torch.uint8, bits.length(n, self.bits)))
        table, packed = unpack(payload, *parts)
        return table[bits.unpack(packed, self.bits, n).long()].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, self.bits) + 4 * self.count


named_sentence(
    "muloco",
    "diloco(period=30) / bucket_means(bits=2, deviations=3)+two_hop+error_feedback / allreduce",
    axis="sync",
    paper="Therien, Huang, Rish, Belilovsky, arXiv 2505.23725, 2025",
    doc="""DiLoCo around Muon, whose outer gradients take two bits, with an error memory and in two hops.

    In two hops no value is rounded more than twice. The inner optimizer is the script's:
    `laconic.optim.Muon(matrices_apart(model))`. Reading chosen: bucket means over three standard deviations to either
    side, and a memory that forgets nothing (the paper tries 0.9 to 1).
    """,
)
