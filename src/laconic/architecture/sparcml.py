"""SparCML: sums of vectors that are mostly zero, by pairs of index and value, or dense where that is cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from laconic.architecture.allreduce import EqualWorkers
from laconic.claims import EveryRankEndsWithTheSum
from laconic.collective.ragged import ReadByHost
from laconic.collective.sparse.choose import cheapest
from laconic.collective.sparse.sums import SUMS
from laconic.registry import knob, technique
from laconic.worker import Communication, Group, Reduce


@technique(
    "sparcml",
    paper="Renggli et al., SC 2019",
    claims=[EveryRankEndsWithTheSum()],
    formula="(index, value) pairs while nnz ≤ δ = N·v/(c + v), else dense; the cheapest of three sums for max nnz",
)
@dataclass(frozen=True)
class SparCML(EqualWorkers):
    """Send of a sum's tensors only what is not zero: `topk(0.01)+zero_filled+ef / sparcml`, or gradients of embeddings.

    A tensor is a stream of (index, value) pairs while that is shorter, and dense otherwise, on every hop. By the
    largest count k of all workers (eight bytes of control) it is summed by recursive doubling, by ranges of indices
    that are gathered sparse, or by ranges that are gathered dense, whichever is the cheapest if indices are
    independent. Supports that overlap cost less than that. Headers of eight bytes a message are control. A plan prices
    the dense bound. Reading chosen: results are not quantised here; `int8+two_hop` does that.
    """

    follows_content: ClassVar[bool] = True
    sum: str = knob("auto", choices=("auto", *SUMS), doc="how tensors are summed, or the cheapest for their counts")
    latency_bytes: int = knob(65536, low=0, doc="what a link carries during a message's latency: 50 µs at 10 Gbit/s")

    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        flat = x.reshape(-1)
        if group.size == 1 or not flat.numel():
            return x
        name = self.sum
        if name == "auto":
            own = flat.count_nonzero().view(1)
            (k,) = yield ReadByHost(group.all_reduce(own, op="max", control=1.0))
            name = cheapest(flat.numel(), int(k), group.size, flat.element_size(), self.latency_bytes)
        total = yield from SUMS[name](flat, group)
        return x.copy_(total.view_as(x))
