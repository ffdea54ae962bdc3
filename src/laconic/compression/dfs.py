"""DFS: blocks of small values are pruned and skipped, with the block size that costs the fewest bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.payload import pack
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_UNIT = 8  # the smallest block, and the unit of sizes and positions in headers
_SHIFT = 28  # bits of a block's position


def price(blocks: int, size: int) -> int:
    """Return the bytes of so many blocks of this size with their headers."""
    return blocks * (4 + 4 * size)


def in_blocks(flat: Tensor, size: int) -> Tensor:
    """Return the values in rows of `size`, the last of which is padded with zeros."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def pruned(rows: Tensor, budget: float) -> Tensor:
    """Tell which rows are left when the smallest are left out, as many as have no more energy than `budget`
    together."""
    energy, order = rows.double().square().sum(dim=1).sort()
    left = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    left[order[energy.cumsum(0) <= budget]] = False
    return left


@technique(
    "dfs",
    aliases=["block_sparse"],
    paper="Yang, Zhao, Zhao, Xu, Computer Networks 229, 2023",
    formula="C(x) = x without its blocks of least energy, together at most prune·|x|²; the block size that costs least",
)
@dataclass(frozen=True)
class DFS(Codec):
    """Blocks of values: those that are zero are skipped, and those with the least energy are pruned to zero.

    Pruning takes at most `prune` of the energy. Of the block sizes the one that costs least is taken, anew for every
    message: small blocks skip more and have more headers. Nothing else of the same energy leaves fewer blocks. Reading
    chosen: whole blocks are pruned, the size is searched for among powers of two, and what is pruned is remembered only
    by dfs+ef; a server's answers are not coded. A tensor that contains a value that is not finite is not pruned.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "reduce"
    prune: float = knob(0.1, low=0, below=1, doc="share of the squared norm that may be left out")
    blocks: tuple[int, ...] = knob(
        (8, 16, 32, 64, 128, 256, 512), doc="block sizes to choose from, powers of two from 8 on"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.blocks or any(b < _UNIT or b & (b - 1) or b >= 1 << 18 for b in self.blocks):
            raise StrategyError(f"blocks={self.blocks} are not powers of two from 8 to 131072; write (8, 32, 128)")

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values in the cheapest blocks, and which of them are sent."""
        energy = float(flat.double().square().sum())
        budget = self.prune * energy if energy < torch.inf else 0.0
        found = [(rows, pruned(rows, budget)) for rows in (in_blocks(flat, size) for size in self.blocks)]
        return min(found, key=lambda one: price(int(one[1].sum()), one[0].shape[1]))

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        rows, left = self.choose(x.reshape(-1))
        size, kept = rows.shape[1], torch.nonzero(left).view(-1)
        header = kept * (size // _UNIT) | (size // _UNIT).bit_length() - 1 << _SHIFT
        return pack(torch.where(header >= 1 << 31, header - (1 << 32), header).to(torch.int32), rows[kept])

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        decoded = torch.zeros(shape.numel(), device=payload.device)
        if payload.numel():
            size = _UNIT << (int(payload[:4].clone().view(torch.int32)) >> _SHIFT & 0xF)
            blocks = payload.numel() // price(1, size)
            header, values = payload.tensor_split([4 * blocks])
            starts = header.clone().view(torch.int32).long() & (1 << _SHIFT) - 1
            rows = in_blocks(decoded, size)
            rows[starts * _UNIT // size] = values.clone().view(torch.float32).view(blocks, size)
            decoded = rows.view(-1)[: shape.numel()]
        return decoded.view(shape)

    def contraction(self, spec: TensorSpec) -> float | None:
        return 1 - self.prune

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a message in which no block can be skipped."""
        return min(price(-(-spec.numel // block), block) for block in self.blocks)
