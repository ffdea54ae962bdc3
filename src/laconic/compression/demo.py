"""DeMo: every worker keeps its own momentum and sends its fast-moving components, as cosine coefficients of small
tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codes import bits
from laconic.compression.low_rank import sides
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@technique(
    "demo",
    aliases=["decoupled_momentum"],
    paper="Peng, Quesnelle, Kingma, arXiv 2411.19870, 2024",
    evidence="fixture",
    reproduces="demo.npz: messages, momenta, parameters of two workers, as `demo(6, 16)` and `demo(4, 64, decay=0.9)`",
    formula="d ← βd + lr·g; send top_k(DCT(tiles of d)), d ← d - own; result sign(IDCT(mean over those who sent it))",
)
@dataclass(frozen=True)
class DeMo(Compressor):
    """The largest cosine coefficients of each tile of a worker's momentum; the common step is a sign.

    d = decay·d + rate·g is momentum and error memory at once, and differs from worker to worker; what was sent is
    subtracted from it. A coefficient is averaged over the workers that sent it; the result is the sign of the inverse
    transform, for torch.optim.SGD, whose own momentum is applied here instead (and whose weight decay is the paper's).
    Reading chosen: 32 coefficients a tile, as in the published program, and tensors of more than two dimensions are
    seen as a matrix. Values that are not finite are sent (as NaN), and then forgotten.
    """

    cost: ClassVar[str] = "transform"
    takes: ClassVar[tuple[str, ...]] = ("momentum",)
    k: int = knob(32, low=1, gentler="more", doc="cosine coefficients of a tile that are sent")
    chunk: int = knob(64, low=1, doc="longest side of a tile, which divides the tensor's")
    decay: float = knob(0.999, low=0, high=1, doc="share of the momentum that is kept in the next step")

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def conserved(self) -> tuple[str, ...]:
        return ("momentum",)

    @property
    def refuses_memory(self) -> str | None:
        return "its momentum keeps what was not sent; write demo"

    def init(self, spec: TensorSpec) -> State:
        return {"momentum": torch.zeros(spec.shape)}

    def tile(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sides of a tile: one for a vector, else two."""
        whole = (torch.Size(shape).numel(),) if len(shape) < 2 else sides(shape)
        return tuple(max(d for d in range(1, min(self.chunk, side) + 1) if side % d == 0) for side in whole)

    def cosines(self, d: Tensor) -> Tensor:
        """Return the cosine coefficients of every tile, a row each."""
        tile = self.tile(tuple(d.shape))
        if len(tile) == 1:
            return d.reshape(-1, tile[0]) @ basis(tile[0]).to(d.device).T
        h, w = tile
        tiles = d.reshape(sides(tuple(d.shape))).unflatten(0, (-1, h)).unflatten(2, (-1, w)).transpose(1, 2)
        rows: Tensor = basis(h).to(d.device) @ tiles @ basis(w).to(d.device).T
        return rows.reshape(-1, h * w)

    def restored(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Return the tensor of this shape whose tiles have these cosine coefficients."""
        tile = self.tile(tuple(shape))
        if len(tile) == 1:
            return (rows @ basis(tile[0]).to(rows.device)).view(shape)
        (h, w), (height, width) = tile, sides(tuple(shape))
        tiles = basis(h).to(rows.device).T @ rows.view(height // h, width // w, h, w) @ basis(w).to(rows.device)
        return tiles.transpose(1, 2).reshape(shape)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        d = self.decay * state["momentum"] + meet.rate * x.float()
        rows = self.cosines(d)
        k = min(self.k, rows.shape[1])
        size = torch.where(rows.isnan(), torch.inf, rows.abs())
        places = size.topk(k, dim=1, sorted=False).indices.sort(dim=1).values
        values = rows.gather(1, places)
        own = self.restored(torch.zeros_like(rows).scatter_(1, places, values), x.shape)
        left = (d - own).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        messages = yield meet.gather(self.write(places, values, rows.shape[1]))
        total, count = torch.zeros(2, *rows.shape, device=x.device)
        for message in messages:
            where, what = self.read(message, *rows.shape)
            total.scatter_add_(1, where, what)
            count.scatter_add_(1, where, torch.ones_like(what))
        mean = self.restored(total / count.clamp(min=1), x.shape)
        step = torch.where(mean.isfinite(), mean.sign(), torch.nan)
        return Outcome(step.to(x.dtype), {"momentum": left}, own.to(x.dtype))

    def write(self, places: Tensor, values: Tensor, length: int) -> Tensor:
        """Encode places and coefficients as a message."""
        width = _width(length)
        return pack(values, bits.pack(places, width)) if width else pack(values)

    def read(self, message: Tensor, tiles: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the places in each tile and the coefficients there, from a message."""
        count, width = tiles * min(self.k, length), _width(length)
        values, packed = unpack(message, (torch.float32, count), (torch.uint8, bits.length(count, width)))
        places = bits.unpack(packed, width, count).long() if width else torch.zeros_like(values, dtype=torch.long)
        return places.view(tiles, -1), values.view(tiles, -1)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        length = math.prod(self.tile(spec.shape))
        count = spec.numel // length * min(self.k, length)
        return 4 * count + bits.length(count, _width(length))


def _width(length: int) -> int:
    """Return the number of bits of a place among `length`."""
    return (length - 1).bit_length()


@cache
def basis(n: int) -> Tensor:
    """Return the matrix of the orthonormal cosine transform (DCT-II) of n values."""
    places = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(torch.pi / n * (places + 0.5) * places[:, None]) * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves.float()
