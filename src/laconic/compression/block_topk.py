"""Selection of whole blocks: their numbers are sent in place of places, and sums by blocks have little else to send."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.codes import bits
from laconic.compression.selector import PlaceSelector, share_of
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "block_topk",
    paper="Fei et al. (OmniReduce), SIGCOMM 2021",
    formula="C(x)_b = x_b for the k blocks of the largest norms, else 0",
    worth_trying=["block_topk(0.01)+ef"],
)
@dataclass(frozen=True)
class BlockTopK(PlaceSelector):
    """The blocks of consecutive values whose norms are the largest; use it with memory: block_topk+ef.

    It is a contraction with δ = k/blocks. The last block may be shorter; it is padded with zeros. `block_topk(0.01)
    +zero_filled+ef / omnireduce` sends each selected block once, if both have the same `block`.
    """

    ratio: float = knob(0.01, above=0, high=1, gentler="more", doc="share of the blocks that are sent, at least one")
    block: int = knob(256, low=1, doc="values of a block")

    def blocks(self, numel: int) -> tuple[int, int]:
        """Return how many blocks there are, and how many are sent."""
        every = -(-numel // self.block)
        return every, share_of(self.ratio, every)

    def count(self, numel: int) -> int:
        return min(numel, self.blocks(numel)[1] * self.block)

    @property
    def varies(self) -> bool:
        return True  # a shorter last block may be among them

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        every, k = self.blocks(x.numel())
        padded = torch.nn.functional.pad(x, (0, every * self.block - x.numel()))
        chosen = largest(padded.view(every, self.block).norm(dim=1), k)
        return self._places(chosen, x.numel())

    def _places(self, chosen: Tensor, numel: int) -> Tensor:
        places = (chosen[:, None] * self.block + torch.arange(self.block, device=chosen.device)).view(-1)
        return places[places < numel]

    def places_bytes(self, k: int, numel: int) -> int:
        return bits.length(-(-k // self.block), bits.width(self.blocks(numel)[0] - 1))

    def write_places(self, places: Tensor, numel: int) -> Tensor:
        return bits.pack(places[:: self.block] // self.block, bits.width(self.blocks(numel)[0] - 1))

    def read_places(self, payload: Tensor, k: int, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        written, rest = payload.tensor_split([self.places_bytes(k, numel)])
        chosen = bits.unpack(written, bits.width(self.blocks(numel)[0] - 1), -(-k // self.block)).long()
        return self._places(chosen, numel), rest

    def contraction(self, spec: TensorSpec) -> float | None:
        every, k = self.blocks(spec.numel)
        return k / every
