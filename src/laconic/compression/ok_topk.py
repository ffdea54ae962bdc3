"""Ok-Topk: the largest values of the sum of all workers' largest, by owners of regions, with thresholds that are
reused."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.codes import bits
from laconic.compression.payload import pack
from laconic.compression.selector import share_of
from laconic.compression.thresholds import above, passing
from laconic.compression.topk import largest
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, GatherRagged, Meet, Meets, Reduce, Request, ScatterRagged

_RAISE, _TIMES, _MANY = (
    1.03,
    5,
    4 / 3,
)  # factor by which a threshold is raised while too many pass; how often a step at most; how many are too many
_FEW, _OWN_MANY = 2 / 3, 5 / 4  # shares of k beyond which a threshold is changed for the next step; of sums: _MANY
_OWN_STEP, _SUMS_UP, _SUMS_DOWN = 1.025, 1.025, 1.036  # the factors by which, as in the published program for BERT
_MOST = 4  # the largest number of values sent, in multiples of k


@technique(
    "ok_topk_select",
    aliases=["ok_topk"],
    paper="Li, Hoefler, PPoPP 2022",
    evidence="fixture",
    reproduces="ok_topk_select.npz: thresholds, selections and memory, as `ok_topk_select(0.05)`; not its collective",
    formula="y = Σ_j (x_j where |x_j| ≥ t), result y/N where |y| ≥ T; t and T exact now and then",
)
@dataclass(frozen=True)
class OkTopK(Compressor):
    """About the k largest of the sum of all workers' about k largest, summed by the owners of regions of places.

    Both thresholds, of a worker's own values and of sums, are exact every `refresh` steps and reused in between; there,
    as in the published program, what passes is strictly above. While more than 4k/3 pass the own one is raised by 3 %,
    five times a step at most; and where fewer than 2k/3 passed, or more than 5k/4 (of sums: 4k/3), a threshold is
    lowered or raised for the next step by the 2.5 or 3.6 % of the program for BERT. In an exact step owners compare
    candidates; those that N equal shares of k show to be too small are not sent. Regions are made anew every
    `rebalance` steps from all workers' places, so that owners get similar counts. What a worker chose counts as sent
    only where the sum was kept: write ok_topk_select+ef. Places are written within regions, in few bits, and more than
    4k values are never sent. A value that is not finite is above any threshold.

    Owners exchange how many sums each has kept; where one has more than `uneven` times the mean, they first move them
    so that all have equal runs of the list. With k places at every worker and k sums kept no worker then sends more
    than 6k(N-1)/N words, also if a word is a place. Reading chosen: `uneven` is 2, not the published 4: a worker sends
    its run to each other one, and with 4 the bound would not hold. On noise, counts are not always near k, see
    `refresh`: with a constant part of half the noise's size up to five times k sums survive in a step.
    """

    ragged: ClassVar[bool] = True
    cost: ClassVar[str] = "elementwise"
    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )
    refresh: int = knob(32, low=1, doc="steps for which thresholds are reused")
    rebalance: int = knob(64, low=1, doc="steps for which regions stay as they are")
    uneven: float = knob(2.0, low=1, doc="multiple of the mean count beyond which kept sums are moved to other owners")

    @property
    def meets(self) -> Meets:
        return "scatter"

    @property
    def asks(self) -> tuple[type, ...]:
        return Reduce, ScatterRagged, Gather, GatherRagged

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def most(self, numel: int) -> int:
        """Return the largest number of values that are sent."""
        return min(numel, _MOST * self.count(numel))

    def init(self, spec: TensorSpec) -> State:
        """Return the thresholds of own values and of sums, and the ends of regions as shares of the tensor, all still
        unknown."""
        return {"thresholds": torch.zeros(2, dtype=torch.float64), "ends": torch.zeros(0)}

    def choose(self, flat: Tensor, threshold: float, exact: bool) -> tuple[Tensor, float]:
        """Return the selected places, and the threshold after this step."""
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
        """Tell whether the threshold is computed exactly in this step, which is also so while there is none to
        reuse."""
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
        received = yield meet.scatter_ragged(regions.rows(places, flat[places]))
        sums, found = regions.summed(received, meet.rank)
        k, exact = self.count(n), self._is_due(of_sums, meet)
        if exact:
            share = -(-k // size)
            least = _least(sums[largest(sums, share)]) if len(sums) >= share else 0.0
            (bound,) = yield meet.max(sums.new_tensor([-least]))  # N·share sums, at least k, are not below the smallest
            best = largest(sums, k)
            best = best[~(sums[best].abs() < -bound)]
        else:
            best = passing(sums, above(of_sums))
        best = self._limited(best, sums[best], n)
        final, total = yield from self._gathered(found[best], sums[best], regions, meet)
        if exact and len(final):
            kept = largest(total, k)
            final, total = final[kept], total[kept]
            of_sums = _least(total)
        elif not exact:
            of_sums *= _nudge(len(final) / k, _MANY, _SUMS_UP, _SUMS_DOWN)
        own *= _nudge(len(places) / k, _OWN_MANY, _OWN_STEP, _OWN_STEP)
        result, sent = torch.zeros(2, n, device=x.device)
        result[final] = total / size
        adopted = places[torch.isin(places, final)]
        sent[adopted] = flat[adopted]
        state = {"thresholds": torch.tensor([own, of_sums], dtype=torch.float64), "ends": ends}
        return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def _gathered(
        self, places: Tensor, values: Tensor, regions: _Regions, meet: Meet
    ) -> Generator[Request, Any, tuple[Tensor, Tensor]]:
        """Give all workers the places and values of every owner, from runs of equal lengths if those are too uneven."""
        counts = yield meet.gather(torch.tensor([len(places)], device=places.device))
        ends = counts.view(-1).cumsum(0).tolist()
        if max(counts.view(-1).tolist()) * meet.size > self.uneven * ends[-1]:
            before, bounds = ends[meet.rank] - len(places), [ends[-1] * j // meet.size for j in range(1, meet.size)]
            cuts = [min(max(bound - before, 0), len(places)) for bound in bounds]
            runs = zip(places.tensor_split(cuts), values.tensor_split(cuts), strict=True)
            received = yield meet.scatter_ragged([regions.write(*run, meet.rank) for run in runs])
            places, values = regions.joined(received)
            regions = _Regions.whole(regions.numel, meet.size, places.device)
        rows = yield meet.gather_ragged(regions.write(places, values, meet.rank))
        return regions.joined(rows)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the messages of a step with exact thresholds, at most: with sums that are moved."""
        k = self.count(spec.numel)
        each = 4 * k + bits.length(k, bits.width(spec.numel))
        return ("reduce", 4 * (size - 1) + 4), ("scatter", 2 * (each + size)), ("gather", 8 + each)


def _nudge(share: float, many: float, up: float, down: float) -> float:
    """Return the factor for the next step of a threshold that this share of k has passed."""
    return up if share > many else 1 / down if share < _FEW else 1.0


def _least(values: Tensor) -> float:
    """Return the smallest magnitude; NaN counts as large."""
    return float(torch.where(values.isnan(), torch.inf, values.abs()).min())


def _quantiles(places: Tensor, numel: int, size: int) -> Tensor:
    """Return where regions with equal counts of these places would end, as shares of the tensor."""
    at = torch.arange(1, size, device=places.device) * len(places) // size
    return places[at].float() / numel


@dataclass(frozen=True, eq=False)
class _Regions:
    """The regions of all owners; places within a region are written in as many bits as the longest region takes."""

    starts: Tensor
    numel: int
    bits: int

    @staticmethod
    def whole(numel: int, size: int, device: torch.device) -> _Regions:
        """Return regions that are the whole tensor for every owner."""
        return _Regions(torch.zeros(size, dtype=torch.int64, device=device), numel, bits.width(numel))

    @staticmethod
    def of(ends: Tensor, numel: int) -> _Regions:
        starts = torch.cat([ends.new_zeros(1), (ends * numel).round()]).long()
        longest = torch.diff(starts, append=starts.new_tensor([numel])).max()
        return _Regions(starts, numel, bits.width(int(longest)))

    def write(self, places: Tensor, values: Tensor, owner: int) -> Tensor:
        """Encode one owner's places and values as bytes."""
        return pack(values, bits.pack(places - self.starts[owner], self.bits))

    def read(self, payload: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Return the places and values of a payload."""
        count = 8 * payload.numel() // (32 + self.bits)
        values, written = payload.tensor_split([4 * count])
        within = bits.unpack(written, self.bits, count).long()
        return within + self.starts[owner], values.clone().view(torch.float32)

    def rows(self, places: Tensor, values: Tensor) -> list[Tensor]:
        """Return what is sent to each owner of these places, which are in ascending order."""
        cuts = torch.searchsorted(places, self.starts[1:]).tolist()
        parts = zip(places.tensor_split(cuts), values.tensor_split(cuts), strict=True)
        return [self.write(*part, owner) for owner, part in enumerate(parts)]

    def joined(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the places and values that every owner has written, one behind another."""
        places, values = zip(*(self.read(row, owner) for owner, row in enumerate(rows)), strict=True)
        return torch.cat(places), torch.cat(values)

    def summed(self, rows: Sequence[Tensor], owner: int) -> tuple[Tensor, Tensor]:
        """Return the sums over all workers, in the order of ranks, and their places in ascending order."""
        places, values = (torch.cat(part) for part in zip(*(self.read(row, owner) for row in rows), strict=True))
        found, where = places.unique(return_inverse=True)
        return torch.zeros(len(found), device=values.device).index_add_(0, where, values), found


named_sentence(
    "oktopk_allreduce",
    "bsp / ok_topk_select+ef / allreduce",
    axis="architecture",
    paper="Li, Hoefler, PPoPP 2022",
    doc="""An all-reduce of top-k sparse gradients with traffic of order k, however many workers there are.

    Pairs go to the owners of regions that hold about as many of them each; owners add them, keep the sums above a
    common threshold, balance their counts and give them to all. What was not kept stays in the workers' memories. See
    `ok_topk_select`, whose knobs are `refresh` (τ') and `rebalance` (τ).""",
    formula="Σ_j (x_j where |x_j| ≥ t), kept where at least T in magnitude: at most 6k(N-1)/N words a worker",
)
