"""SparseLoCo's message, the largest of every chunk in two bits; and CocktailSGD's, a random share of which the largest
are sent in four bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.bucket_means import bucketed
from laconic.compression.chunk_buckets import ChunkLayout
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.compression.selector import PlaceSelector, drawn, share_of
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_WIDTH = 6  # standard deviations that the four buckets of two bits span


@technique(
    "chunk_topk",
    aliases=["chunktopk"],
    paper="Sarfi et al. (SparseLoCo), arXiv 2508.15706, 2025",
    formula="C(x)_i = x_i where |x_i| is among the k largest of its chunk, else 0",
    worth_trying=["chunk_topk+ef"],
)
@dataclass(frozen=True)
class ChunkTopK(PlaceSelector):
    """The `k` largest magnitudes of every chunk of consecutive elements.

    A place takes log2 of the chunk's length in bits, and no sort is longer than a chunk. The last chunk may be shorter,
    and sends at most as many values as it has. (The paper cuts matrices in square tiles; rows serve as well for what is
    selected, and need no rearranging.)
    """

    chunk: int = knob(4096, low=1, doc="elements of a chunk")
    k: int = knob(64, low=1, gentler="more", doc="coordinates of each chunk that are sent")

    def _chunks(self, numel: int) -> tuple[int, int]:
        """Return the number of full chunks, and the length of the rest."""
        return numel // self.chunk, numel % self.chunk

    def count(self, numel: int) -> int:
        whole, rest = self._chunks(numel)
        return whole * min(self.k, self.chunk) + min(self.k, rest)

    def contraction(self, spec: TensorSpec) -> float | None:
        return min(1.0, self.k / min(self.chunk, spec.numel))

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        whole, rest = self._chunks(x.numel())
        size = torch.where(x.isnan(), torch.inf, x.abs())
        places = []
        if whole:
            rows = size[: whole * self.chunk].view(whole, self.chunk)
            own = rows.topk(min(self.k, self.chunk), dim=1, sorted=False).indices.sort(dim=1).values
            places.append((own + self.chunk * torch.arange(whole, device=x.device)[:, None]).view(-1))
        if rest:
            own = size[whole * self.chunk :].topk(min(self.k, rest), sorted=False).indices.sort().values
            places.append(own + whole * self.chunk)
        return torch.cat(places)

    def exchange_selected(self, values: Codec, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        if not isinstance(values, TwoBit) or bucket.flat.dtype != torch.float32:
            return None
        layout: ChunkLayout = bucket.fact(
            "chunks", lambda: ChunkLayout(bucket.lengths, self.chunk, self.k, bucket.flat.device)
        )
        return layout.exchange(bucket, _WIDTH / 2, self.left_out, meet) if layout.whole_bytes else None

    def places_bytes(self, k: int, numel: int) -> int:
        return bits.length(k, bits.width(self.chunk - 1))

    def write_places(self, places: Tensor, numel: int) -> Tensor:
        return bits.pack(places % self.chunk, bits.width(self.chunk - 1))

    def read_places(self, payload: Tensor, k: int, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        written, rest = payload.tensor_split([self.places_bytes(k, numel)])
        within = bits.unpack(written, bits.width(self.chunk - 1), k).long()
        each = min(self.k, self.chunk)
        return within + self.chunk * (torch.arange(k, device=payload.device) // each), rest


@technique(
    "two_bit",
    paper="Sarfi et al. (SparseLoCo), arXiv 2508.15706, 2025",
    formula="Q(x)_i = mean of what falls into its bucket, of four buckets over µ ± 3σ",
    worth_trying=["two_bit+ef"],
)
@dataclass(frozen=True)
class TwoBit(Codec):
    """Two bits a value: four buckets over six standard deviations, each decoded as the mean of its values.

    The buckets lie around the mean. A table of four and the mean are sent with a tensor: 20 bytes. (The paper's
    quantiser is read from descendants of its code; the width is a choice.) A tensor that contains a value that is not
    finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        codes, table, shift = bucketed(x.reshape(-1), 4, _WIDTH / 2)
        return pack(bits.pack(codes, 2), table, shift.view(1))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        packed, table = unpack(payload, (torch.uint8, bits.length(shape.numel(), 2)), (torch.float32, 5))
        return (table[:4] + table[4])[bits.unpack(packed, 2, shape.numel()).long()].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, 2) + 20


named_sentence(
    "sparseloco",
    "diloco(period=30, lr=1.0, momentum=0.0) / chunk_topk(k=64)+two_bit+error_feedback(decay=0.95) / allreduce",
    axis="sync",
    paper="Sarfi, Therien, Lidin, Belilovsky, arXiv 2508.15706, 2025",
    doc="""DiLoCo with the largest values of every chunk in two bits, and decaying error memories as outer momentum.

    Rounds of local steps, no outer momentum: the workers' decaying error memories take its place, so that extreme
    sparsity costs nothing. Readings chosen: `two_bit`'s statistics are a tensor's, and places take twelve plain bits.
    """,
)


@technique(
    "masked",
    paper="Wang et al. (CocktailSGD), ICML 2023",
    formula="C(x)_i = x_i on random places that all workers share, else 0",
)
@dataclass(frozen=True)
class Masked(PlaceSelector):
    """A random share of the coordinates, the same on all workers, for the words behind it in a chain.

    Places are not sent: both sides draw them from a shared key. Values are not scaled, so that it wants a memory.
    """

    ratio: float = knob(0.1, above=0, high=1, gentler="more", doc="share of the coordinates")

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def contraction(self, spec: TensorSpec) -> float | None:
        return self.count(spec.numel) / spec.numel

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        return self._drawn(x.numel(), meet, x.device)

    def _drawn(self, numel: int, meet: Meet, device: torch.device) -> Tensor:
        return drawn(self.count(numel), numel, meet.key("mask", shared=True), device)

    def places_bytes(self, k: int, numel: int) -> int:
        return 0

    def write_places(self, places: Tensor, numel: int) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=places.device)

    def read_places(self, payload: Tensor, k: int, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        return self._drawn(numel, meet, payload.device), payload


@technique(
    "strided_bits",
    paper="Wang et al. (CocktailSGD), ICML 2023",
    formula="Q(x)_i = (s/8)·round(8·x_i/s), from -8 to 7, s = max|bucket| in 16 bits (4 bits a value)",
)
@dataclass(frozen=True)
class StridedBits(Codec):
    """A few bits a value: the nearest multiple of a fraction of its bucket's largest magnitude, a 16-bit float.

    Buckets are strided: values are laid out row by row and a bucket is a column, as in the published program; where
    they do not fill the last row, the rest is zeros that are not sent. The largest positive value decodes to (2^(b-1) -
    1)/2^(b-1) of itself. A bucket that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    bits: int = knob(4, low=2, high=8, gentler="more", doc="bits of a value")
    bucket: int = knob(128, low=1, doc="values that share a scale")

    @property
    def unit(self) -> int:
        return math.lcm(self.bucket, 8)

    def _columns(self, numel: int) -> int:
        return -(-numel // self.bucket)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        columns = self._columns(x.numel())
        matrix = torch.nn.functional.pad(x.reshape(-1), (0, columns * self.bucket - x.numel())).view(-1, columns)
        scales = matrix.abs().amax(dim=0).to(torch.float16)
        codes = codes_of(matrix, scales, self.bits).view(-1)[: x.numel()]
        return pack(bits.pack(codes, self.bits), scales)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, half = shape.numel(), 2 ** (self.bits - 1)
        columns = self._columns(n)
        packed, scales = unpack(payload, (torch.uint8, bits.length(n, self.bits)), (torch.float16, columns))
        codes = bits.unpack(packed, self.bits, n).float()
        matrix = torch.nn.functional.pad(codes, (0, columns * self.bucket - n), value=float(half)).view(-1, columns)
        values: Tensor = (matrix - half) * (scales.float() / half)
        return values.view(-1)[:n].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, self.bits) + 2 * self._columns(spec.numel)


def codes_of(matrix: Tensor, scales: Tensor, width: int) -> Tensor:
    """Return the unsigned codes of a matrix of values, of which the lower half stands for negative values."""
    half: int = 2 ** (width - 1)
    wide = scales.float()
    steps = (matrix / wide.where(wide > 0, 1) * half).round().nan_to_num(0.0)
    return (steps.clamp(-half, half - 1) + half).to(torch.uint8)
