"""Ok-Topk: the largest of the sum of everybody's largest, by owners of regions, with thresholds that are used again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codes import bits
from laconic.compression.payload import pack
from laconic.compression.select import share_of
from laconic.compression.sparse import largest
from laconic.compression.thresholds import above, passing
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, GatherRagged, Meet, Meets, Reduce, Scatter

_RAISE, _TIMES, _MANY = 1.03, 5, 4 / 3  # a threshold that lets too many pass is raised, so often in a step at most
_MOST = 4  # times k are said at most


@technique(
    "ok_topk_select",
    aliases=["ok_topk"],
    paper="Li, Hoefler, PPoPP 2022",
    evidence="fixture",
    reproduces="ok_topk_select.npz: thresholds, selections and memory of six steps",
    formula="y = Σ_j (x_j where |x_j| ≥ t), result y/N where |y| ≥ T; t and T exact now and then",
)
@dataclass(frozen=True)
class OkTopK(Compressor):
    """About the k largest of the sum of everybody's about k largest, summed by the owners of regions of places.

    Both thresholds, of a worker's own values and of sums, are exact every `refresh` steps and used again in between;
    there, as in the published program, what passes is strictly above, and while more than 4k/3 pass the own one is
    raised by 3 %, five times a step at most. Regions are made anew every `rebalance` steps from everybody's places, so
    that owners get like counts. What a worker chose counts as said only where the sum was kept: write
    ok_topk_select+ef. Places are written within regions, in few bits; rows to owners are as long as the longest, and
    more than 4k are never said. A value that is not finite is above any threshold.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "elementwise"
    ratio: float = knob(0.01, above=0, high=1, doc="share of the coordinates that are said, at least one")
    refresh: int = knob(32, low=1, doc="steps for which thresholds are used")
    rebalance: int = knob(64, low=1, doc="steps for which regions stay as they are")

    @property
    def meets(self) -> Meets:
        return "scatter"

    @property
    def asks(self) -> tuple[type, ...]:
        return Reduce, Scatter, Gather, GatherRagged

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def most(self, numel: int) -> int:
        return min(numel, _MOST * self.count(numel))

    def init(self, spec: TensorSpec) -> State:
        """Thresholds, of own values and of sums; and where regions end, as shares of the tensor, once it is known."""
        return {"thresholds": torch.zeros(2, dtype=torch.float64), "ends": torch.zeros(0)}

    def choose(self, flat: Tensor, threshold: float, exact: bool) -> tuple[Tensor, float]:
        """Places, and the threshold after this step."""
        k = self.count(flat.numel())
        if exact:
            places = largest(flat, k)
            return places, _least(flat[places])
        places = passing(flat, above(threshold))
        for _ in range(_TIMES):
            if len(places) <= int(_MANY * k):
                break
            threshold *= _RAISE
            places = places[passing(flat[places], above(threshold))]
        return self._limited(places, flat[places], flat.numel()), threshold

    def _is_due(self, threshold: float, meet: Meet) -> bool:
        """Whether it is exact in this step: also where there is none to use."""
        return meet.step % self.refresh == 0 or not 0 < threshold < math.inf

    def _limited(self, places: Tensor, values: Tensor, numel: int) -> Tensor:
        most = self.most(numel)
        return places if len(places) <= most else places[largest(values, most)]

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, n, size = x.reshape(-1).float(), x.numel(), meet.size
        own, of_sums = state["thresholds"].tolist()
        places, own = self.choose(flat, own, self._is_due(own, meet))
        ends = state["ends"].to(x.device)
        if size > 1 and (meet.step % self.rebalance == 0 or len(ends) != size - 1):
            ends = yield meet.mean(_quantiles(places, n, size))
        regions = _Regions.of(ends, n)
        owners = regions.owners(places)
        told = owners.bincount(minlength=size)
        (width,) = yield meet.max(told.max().view(1))
        heard = yield meet.scatter(regions.rows(places, flat[places], owners, told, max(1, int(width))))
        sums, found = regions.summed(heard, meet.rank)
        k, exact = self.count(n), self._is_due(of_sums, meet)
        best = largest(sums, k) if exact else passing(sums, above(of_sums))
        best = self._limited(best, sums[best], n)
        rows = yield meet.gather_ragged(regions.write(found[best], sums[best], meet.rank))
        parts = [regions.read(row, owner) for owner, row in enumerate(rows)]
        final, total = (torch.cat(part) for part in zip(*parts, strict=True))
        if exact and len(final):
            kept = largest(total, k)
            final, total = final[kept], total[kept]
            of_sums = _least(total)
        result, sent = torch.zeros(2, n, device=x.device)
        result[final] = total / size
        adopted = places[torch.isin(places, final)]
        sent[adopted] = flat[adopted]
        state = {"thresholds": torch.tensor([own, of_sums], dtype=torch.float64), "ends": ends}
        return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Where thresholds are exact; at most, as rows are as long as if all of a worker's places had one owner."""
        k = self.count(spec.numel)
        each = 4 * k + bits.length(k, bits.width(spec.numel))
        return ("reduce", 4 * (size - 1) + 8), ("scatter", size * each), ("gather", each)


def _least(values: Tensor) -> float:
    """The smallest magnitude; what is not a number is large."""
    return float(torch.where(values.isnan(), torch.inf, values.abs()).min())


def _quantiles(places: Tensor, numel: int, size: int) -> Tensor:
    """Where regions with like counts of these places would end, as shares of the tensor."""
    at = torch.arange(1, size, device=places.device) * len(places) // size
    return places[at].float() / numel


@dataclass(frozen=True, eq=False)
class _Regions:
    """Where each owner's places begin; places within a region are written in as many bits as the longest takes."""

    starts: Tensor
    numel: int
    bits: int

    @staticmethod
    def of(ends: Tensor, numel: int) -> _Regions:
        starts = torch.cat([ends.new_zeros(1), (ends * numel).round()]).long()
        longest = torch.diff(starts, append=starts.new_tensor([numel])).max()
        return _Regions(starts, numel, bits.width(int(longest)))

    def owners(self, places: Tensor) -> Tensor:
        return torch.bucketize(places, self.starts[1:], right=True)

    def write(self, places: Tensor, values: Tensor, owner: int) -> Tensor:
        """Of one owner's places: bytes."""
        return pack(values, bits.pack(places - self.starts[owner], self.bits))

    def read(self, payload: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """And back; a row's empty places, which no region has, are left out."""
        count = 8 * payload.numel() // (32 + self.bits)
        values, written = payload.tensor_split([4 * count])
        within = bits.unpack(written, self.bits, count).long()
        said = within < (1 << self.bits) - 1
        return (within + self.starts[owner])[said], values.clone().view(torch.float32)[said]

    def rows(self, places: Tensor, values: Tensor, owners: Tensor, told: Tensor, width: int) -> Tensor:
        """What each owner is told, filled up with empty places."""
        empty = (1 << self.bits) - 1
        where = self.starts[:, None].repeat(1, width) + empty
        what = torch.zeros(where.shape, device=values.device)
        order = torch.arange(len(places), device=places.device) - (told.cumsum(0) - told)[owners]
        where[owners, order], what[owners, order] = places, values
        return torch.stack([self.write(where[j], what[j], j) for j in range(len(told))])

    def summed(self, rows: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Sums of what all say, in the order of ranks, and their places in ascending order."""
        places, values = (torch.cat(part) for part in zip(*(self.read(row, owner) for row in rows), strict=True))
        found, where = places.unique(return_inverse=True)
        return torch.zeros(len(found), device=rows.device).index_add_(0, where, values), found
