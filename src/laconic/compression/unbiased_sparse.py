"""Unbiased sparsification: every coordinate has a probability to be sent, and values are scaled to make up for the
rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Unbiased
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack
from laconic.compression.selector import drawn, share_of
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


def filled(size: Tensor, k: float, rounds: int) -> float:
    """Return λ such that the probabilities min(λ·size, 1) add up to k.

    What those above 1 cannot take is given to the others, in at most `rounds` rounds.
    """
    total = float(size.sum(dtype=torch.float64))
    scale = k / total if total > 0 else 0.0
    for _ in range(rounds):
        certain = size * scale >= 1
        left, room = float((size * ~certain).sum(dtype=torch.float64)), k - int(certain.sum())
        if not left > 0 or room <= scale * left * (1 + 1e-12):
            break
        scale = room / left
    return scale


def least_count(size: Tensor, epsilon: float) -> float:
    """Return λ such that the probabilities min(λ·size, 1) add up to the least for which Σ size²/probability is (1+ε)Σ
    size², by a sort."""
    ordered = size.double().sort(descending=True).values
    first, second = (torch.cat([s.flip(0).cumsum(0).flip(0), s.new_zeros(1)]) for s in (ordered, ordered.square()))
    room = epsilon * second[0] + second  # for each number of coordinates with probability 1
    holds = torch.nn.functional.pad(ordered, (0, 1)) * first <= room
    k = int(holds.int().argmax())
    return float(first[k] / room[k]) if float(room[k]) > 0 else 0.0


@technique(
    "gspar",
    paper="Wangni, Wang, Liu, Zhang, NeurIPS 2018",
    claims=[Unbiased()],
    formula="Q(x)_i = x_i/p_i with chance p_i = min(λ|x_i|, 1), else 0; Σ p_i = k",
)
@dataclass(frozen=True)
class GSpar(Codec):
    """Each coordinate is kept with a probability proportional to its magnitude, and divided by that probability.

    No other choice of k coordinates in the mean has less variance. Coordinates with probability 1 are sent as they are;
    all others are plus or minus the same value, so that a place and a sign suffice, or a map of two bits each where
    that is shorter. `solver=greedy` meets `ratio` in a few passes, `exact` finds by a sort the fewest for a variance of
    `epsilon`. Values that are not finite have probability 1, and are left out of the rest.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "reduce"
    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that are sent in the mean, at least one"
    )
    solver: str = knob("greedy", choices=("greedy", "exact"), doc="meet a number of coordinates, or a variance")
    epsilon: float = knob(1.0, above=0, doc="variance that solver=exact allows, as a share of the squared norm")
    rounds: int = knob(3, low=1, doc="passes of solver=greedy")

    def scale(self, size: Tensor) -> float:
        """Return λ, where probabilities are min(λ·size, 1)."""
        if self.solver == "exact":
            return least_count(size, self.epsilon)
        return filled(size, share_of(self.ratio, size.numel()), self.rounds)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        finite = flat.isfinite()
        size = torch.where(finite, flat.abs(), 0.0)
        scale = self.scale(size)
        chance = size * scale
        certain = torch.nonzero(~finite | (chance >= 1)).view(-1)
        lucky = (kernels.uniform(meet.key(), 0, flat.numel(), x.device) < chance) & (chance < 1)
        rest = torch.nonzero(lucky).view(-1)
        n, width = flat.numel(), bits.width(flat.numel() - 1)
        negative = (flat[rest] < 0).long()
        listed = len(rest) * (width + 1) <= 2 * n
        if listed:
            written = bits.pack(rest << 1 | negative, width + 1)
        else:
            marked = torch.zeros(n, dtype=torch.uint8, device=x.device)
            marked[rest] = (1 + negative).byte()
            written = bits.pack(marked, 2)
        head = torch.tensor([len(certain), len(rest) if listed else -1], dtype=torch.int32, device=x.device)
        common = torch.tensor([1 / scale if scale > 0 else 0.0], dtype=torch.float32, device=x.device)
        return pack(head, common, flat[certain], bits.pack(certain, width), written)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, width = shape.numel(), bits.width(shape.numel() - 1)
        certain, count = payload[:8].clone().view(torch.int32).tolist()
        common = payload[8:12].clone().view(torch.float32)
        lengths = [4 * certain, bits.length(certain, width)]
        values, places, written = payload[12:].tensor_split([lengths[0], sum(lengths)])
        decoded = torch.zeros(n, device=payload.device)
        if count >= 0:
            codes = bits.unpack(written, width + 1, count).long()
            decoded[codes >> 1] = common * (1 - 2 * (codes & 1))
        else:
            codes = bits.unpack(written, 2, n)
            decoded = common * ((codes == 1).float() - (codes == 2).float())
        decoded[bits.unpack(places, width, certain).long()] = values.clone().view(torch.float32)
        return decoded.view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        return self.epsilon if self.solver == "exact" else spec.numel / share_of(self.ratio, spec.numel)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a message in which every coordinate has probability 1."""
        n = spec.numel
        return 12 + 4 * n + bits.length(n, bits.width(n - 1)) + 1


KEEPS = ("uniform", "optimal", "range")
PROTOCOLS = ("list", "bitmap", "naive", "seed")


@technique(
    "konecny_richtarik",
    aliases=["randomized_mean_estimation"],
    paper="Konečný and Richtárik, Frontiers in Applied Mathematics and Statistics 4:62, 2018",
    claims=[Unbiased()],
    holds="abstract: one bit a coordinate buys an error of O(r/n); (r - 1)/n = 31/n with floats of r = 32 bits",
    formula="Q(x)_i = µ + (x_i - µ)/p_i with chance p_i, else µ",
)
@dataclass(frozen=True)
class KonecnyRichtarik(Codec):
    """A centre everywhere but on a random support, whose values are stretched away from it to keep the mean right.

    It combines an encoder with a protocol. Support: each coordinate with its own probability (`variable`) or exactly k
    (`fixed`). Probabilities: all alike, or least error for k in the mean (`optimal`), or (x - least)/range with the
    smallest value as centre: then all of the support has the largest value, and a bitmap takes two values and a bit
    each (the binary protocol). Protocols send the same in other bytes: all values, a bitmap and values, places and
    values, or a seed and values where probabilities do not depend on the values. A tensor that contains a value that is
    not finite decodes to values that are not finite. Reading chosen: the seed is a key of 64 bits.
    """

    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates in the support, in the mean; at least one"
    )
    support: str = knob(
        "variable", choices=("variable", "fixed"), doc="each coordinate with a probability, or exactly k"
    )
    keep: str = knob("uniform", choices=KEEPS, doc="what probabilities of a variable support depend on")
    centre: str = knob("mean", choices=("mean", "zero"), doc="value outside of the support")
    protocol: str = knob("list", choices=PROTOCOLS, doc="how the support is encoded")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep != "uniform" and (self.support == "fixed" or self.protocol == "seed"):
            raise StrategyError(
                f"keep={self.keep} needs a variable support, which no seed can repeat; write protocol=list"
            )

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.support == "variable" and self.protocol != "naive"

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def middle(self, flat: Tensor) -> Tensor:
        """Return the centre; NaN if any value is not finite."""
        if not flat.sum().isfinite() and not flat.isfinite().all():
            return flat.new_tensor(torch.nan)
        if self.keep == "range":
            return flat.min()
        return flat.mean() if self.centre == "mean" else flat.new_zeros(())

    def chances(self, away: Tensor) -> Tensor:
        """Return the probabilities of values that are so far from the centre."""
        n, size = away.numel(), away.abs()
        k = self.count(n)
        if self.keep == "range":
            return size / size.max().clamp(min=torch.finfo(torch.float32).tiny)
        if self.keep == "optimal" and k < n:
            return (size * filled(size, k, rounds=64)).clamp_(max=1)
        return torch.full_like(away, k / n)

    def drawn(self, chance: Tensor, key: int) -> Tensor:
        """Return the support, in ascending order."""
        n = chance.numel()
        if self.support == "fixed":
            return drawn(self.count(n), n, key, chance.device)
        return torch.nonzero(kernels.uniform(key, 0, n, chance.device) < chance).view(-1)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat, key = x.reshape(-1), meet.key()
        n, centre = flat.numel(), self.middle(flat)
        chance = self.chances(flat - centre)
        places = self.drawn(chance, key)
        values = centre + (flat[places] - centre) / chance[places]
        if self.protocol == "naive":
            return pack(centre.repeat(n).index_put_((places,), values))
        if self.protocol == "seed":
            return pack(centre.view(1), torch.tensor([key - (key >> 63 << 64)], device=x.device), values)
        if self.protocol == "list":
            return pack(centre.view(1), bits.pack(places, bits.width(n - 1)), values)
        marked = torch.zeros(n, dtype=torch.uint8, device=x.device)
        marked[places] = 1
        sent = centre + (flat - centre).max().view(1) if self.keep == "range" else values
        return pack(centre.view(1), sent, bits.pack(marked, 1))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, nbytes = shape.numel(), payload.numel()
        if self.protocol == "naive":
            return payload.clone().view(torch.float32).view(shape)
        centre, rest = payload[:4].clone().view(torch.float32), payload[4:]
        if self.protocol == "seed":
            key = int(rest[:8].clone().view(torch.int64)) & (1 << 64) - 1
            places, values = self.drawn(self.chances(torch.zeros(n, device=payload.device)), key), rest[8:]
        elif self.protocol == "list":
            width = bits.width(n - 1)
            count = 8 * (nbytes - 4) // (32 + width)
            written, values = rest.tensor_split([bits.length(count, width)])
            places = bits.unpack(written, width, count).long()
        else:
            values, written = rest.tensor_split([nbytes - 4 - bits.length(n, 1)])
            places = torch.nonzero(bits.unpack(written, 1, n)).view(-1)
        decoded = centre.repeat(n)
        decoded[places] = values.clone().view(torch.float32)
        return decoded.view(shape)

    def variance(self, spec: TensorSpec) -> float | None:
        return spec.numel / 2 if self.keep == "range" else spec.numel / self.count(spec.numel) - 1

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        n = spec.numel
        if self.protocol == "naive":
            return 4 * n
        most = self.count(n) if self.support == "fixed" else n
        if self.protocol == "seed":
            return 12 + 4 * most
        if self.protocol == "list":
            return 4 + bits.length(most, bits.width(n - 1)) + 4 * most
        return 4 + bits.length(n, 1) + 4 * (1 if self.keep == "range" else most)
