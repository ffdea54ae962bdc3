"""ZipML: levels that are optimal for the values at hand, and double sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload, Unbiased
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.level_tables import lost, rounded
from laconic.compression.optimal_levels import optimal_levels
from laconic.compression.payload import pack, unpack
from laconic.compression.selector import sample
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_LOOKED = 1 << 16


@technique(
    "zipml",
    paper="Zhang et al., ICML 2017",
    claims=[
        Unbiased(),
        Payload(lambda spec, c: bits.length(spec.numel, bits.width(c.levels - 1)) + 4 * c.levels),
    ],
    holds="double sampling: the second draw costs one bit a value, 4 in place of 3 for eight levels",
    formula="Q(x)_i = one of two neighbouring levels at random; levels minimise Σ (hi - x)(x - lo)",
)
@dataclass(frozen=True)
class ZipML(Codec):
    """Rounding at random to levels that lose least of this very tensor; the table of levels is sent with it.

    Dynamic programming over at most 256 candidates finds them, from 65,536 of the values where there are more; uniform
    levels are used where they lose less. Reading chosen: a table of its own with every message. A tensor that contains
    a value that is not finite decodes to NaN everywhere.

    The word compresses gradients, with one draw each. The paper's double sampling is of data, which no sentence sees:
    it is three functions of this module that a person calls in a training loop for linear models, and nothing else
    calls. `twice` rounds samples, `both` reads the two roundings, `least_squares` makes an unbiased gradient of them.
    """

    cost: ClassVar[str] = "select"
    levels: int = knob(8, low=2, high=128, gentler="more", doc="levels of a table: 8 make 3 bits")

    @property
    def unit(self) -> int:
        return 8

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        table = self.fitted(flat, meet)
        codes = rounded(flat, table, kernels.uniform(meet.key(), 0, flat.numel(), x.device))
        return pack(bits.pack(codes, bits.width(self.levels - 1)), table)

    def fitted(self, flat: Tensor, meet: Meet) -> Tensor:
        """Return the table of levels for these values."""
        if not bool(flat.isfinite().all()):
            return flat.new_full((self.levels,), torch.nan)
        if flat.numel() <= _LOOKED:
            return _table(flat, self.levels)
        ends = torch.stack([flat.min(), flat.max()])
        table = _table(torch.cat([sample(flat, _LOOKED, meet.key("sample")), ends]), self.levels)
        uniform = torch.lerp(ends[0], ends[1], torch.linspace(0, 1, self.levels, device=flat.device))
        return table if lost(flat, table).sum() <= lost(flat, uniform).sum() else uniform

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, width = shape.numel(), bits.width(self.levels - 1)
        packed, table = unpack(payload, (torch.uint8, bits.length(n, width)), (torch.float32, self.levels))
        return table[bits.unpack(packed, width, n).long()].view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω, which is at most that of uniform levels."""
        return spec.numel / (2 * (self.levels - 1) ** 2)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, bits.width(self.levels - 1)) + 4 * self.levels


def _table(values: Tensor, count: int) -> Tensor:
    return torch.from_numpy(optimal_levels(values.cpu().numpy(), count)).to(values)


def twice(x: Tensor, table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Double sampling: return two roundings of the same values, by two independent draws each, as one number.

    Both are the level below or the one above, so that the sum of their two numbers identifies the pair, in one bit more
    than one of them takes. Their order is not kept.
    """
    return rounded(x, table, first) + rounded(x, table, second)


def both(sums: Tensor, table: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two roundings, in an order that is drawn anew for every value, since either was as likely.

    The lower roundings of all values together would not be right in the mean.
    """
    low, high = table[sums // 2], table[(sums + 1) // 2]
    swapped = draws < 0.5
    return torch.where(swapped, high, low), torch.where(swapped, low, high)


def least_squares(one: Tensor, other: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """Return the gradients a(a·x - b) of samples (rows) that are known by two roundings, averaged over both orders.

    Unbiased, since no rounding is multiplied by itself; with one rounding for both factors the bias is the variance of
    that rounding times x.
    """
    forth, back = one * (other @ x - b)[..., None], other * (one @ x - b)[..., None]
    return (forth + back) / 2
