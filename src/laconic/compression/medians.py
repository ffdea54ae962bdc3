"""Values in few classes, each sent as its median: the deep compression of ResFed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.codes import bits, huffman
from laconic.compression.payload import pack
from laconic.compression.selector import PlaceSelector, share_of
from laconic.compression.topk import largest
from laconic.errors import ContractError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@dataclass(frozen=True)
class Medians(Codec):
    """A codec that splits values by their sign and then again and again at the median, and sends each class as its
    median.

    The sizes of classes follow from how many values are negative; with them both sides know the Huffman codes of the
    classes.
    """

    ragged: ClassVar[bool] = True
    bits: int

    def sizes(self, negative: int, count: int) -> list[int]:
        """Return the sizes of all classes in ascending order of their values; some may be empty."""
        found = [negative, count - negative]
        for _ in range(self.bits - 1):
            found = [part for size in found for part in (-(-size // 2), size // 2)]
        return found

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        values, order = flat.sort(stable=True)
        negative = int((flat < 0).sum())
        sizes = torch.tensor(self.sizes(negative, len(flat)))
        ends = sizes.cumsum(0)
        middle = (ends - sizes + (sizes - 1) // 2)[sizes > 0].to(x.device)
        codes = torch.empty(len(flat), dtype=torch.int64, device=x.device)
        codes[order] = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(x.device)
        head = torch.tensor([negative], dtype=torch.int32, device=x.device)
        return pack(head, values[middle], huffman.write(codes, sizes))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        negative = int(payload[:4].clone().view(torch.int32))
        if not 0 <= negative <= shape.numel():
            raise ContractError(f"{negative} of {shape.numel()} values cannot be negative")
        sizes = torch.tensor(self.sizes(negative, shape.numel()))
        classes = int((sizes > 0).sum())
        table = torch.zeros(len(sizes), device=payload.device)
        table[sizes.to(payload.device) > 0] = payload[4 : 4 + 4 * classes].clone().view(torch.float32)
        return table[huffman.read(payload[4 + 4 * classes :], sizes)].view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 + 4 * min(1 << self.bits, spec.numel) + bits.length(spec.numel, self.bits)


@technique(
    "deep_residual",
    paper="Song et al., IEEE Internet of Things Journal 2023 (the compression of ResFed)",
    formula="C(x)_i = the median of x_i's class where |x_i| is in the upper half of the k largest, else 0",
)
@dataclass(frozen=True)
class DeepResidual(PlaceSelector):
    """The upper half of the k largest magnitudes, split by sign and then at medians, each sent as the median of its
    class: flat+deep_residual(0.05) selects among all of a model's values, as the paper does.

    Values are written in Huffman codes, as in the paper. Reading chosen: places are gaps in Golomb's code, which take
    less than the 16 bits of a run of zeros in the paper. Medians are lower ones. Without memory it loses the rest;
    `resfed` sends it later.
    """

    ratio: float = knob(
        0.05, above=0, high=1, gentler="more", doc="share of the coordinates of which the upper half is sent"
    )
    levels: int = knob(1, low=1, high=8, gentler="more", doc="bits of a value: two classes to the power of it")

    @property
    def place_code(self) -> str:
        return "golomb"

    @property
    def own_values(self) -> Codec:
        return Medians(self.levels)

    def count(self, numel: int) -> int:
        k = share_of(self.ratio, numel)
        return k - (k - 1) // 2

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        return largest(x, self.count(x.numel()))
