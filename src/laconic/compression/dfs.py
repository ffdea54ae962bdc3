"""DFS: blocks of which all is small are pruned whole and skipped, in blocks of the size that costs least."""

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

_UNIT = 8  # the smallest block; a header says a block's size and where it begins in these
_SHIFT = 28  # bits of where it begins


def price(blocks: int, size: int) -> int:
    """Bytes of so many blocks with their headers."""
    return blocks * (4 + 4 * size)


def in_blocks(flat: Tensor, size: int) -> Tensor:
    """The last is filled up with zeros."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def pruned(rows: Tensor, budget: float) -> Tensor:
    """Which rows are left when the smallest are left out, as many as have no more energy than the budget together."""
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
    """Blocks that are zero are skipped; those with the least energy are made so, up to `prune` of all energy.

    Of the block sizes the one that costs least is taken, anew for every message: small ones skip more and have more
    headers. Nothing else of the same energy leaves fewer blocks. Reading chosen: whole blocks are pruned, the size is
    searched for among powers of two, and what is pruned is remembered only by dfs+ef; what comes back from a server is
    not coded. A tensor with a value that is not finite is not pruned.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "reduce"
    prune: float = knob(0.1, low=0, below=1, doc="share of the squared norm that may be left out")
    blocks: tuple[int, ...] = knob((8, 16, 32, 64, 128, 256, 512), doc="sizes to choose from, powers of two from 8 on")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.blocks or any(b < _UNIT or b & (b - 1) or b >= 1 << 18 for b in self.blocks):
            raise StrategyError(f"blocks={self.blocks} are not powers of two from 8 to 131072; write (8, 32, 128)")

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The cheapest blocks, and which of them are said."""
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
        said = torch.zeros(shape.numel(), device=payload.device)
        if payload.numel():
            size = _UNIT << (int(payload[:4].clone().view(torch.int32)) >> _SHIFT & 0xF)
            blocks = payload.numel() // price(1, size)
            header, values = payload.tensor_split([4 * blocks])
            starts = header.clone().view(torch.int32).long() & (1 << _SHIFT) - 1
            rows = in_blocks(said, size)
            rows[starts * _UNIT // size] = values.clone().view(torch.float32).view(blocks, size)
            said = rows.view(-1)[: shape.numel()]
        return said.view(shape)

    def contraction(self, spec: TensorSpec) -> float | None:
        return 1 - self.prune

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Where nothing can be skipped."""
        return min(price(-(-spec.numel // block), block) for block in self.blocks)
