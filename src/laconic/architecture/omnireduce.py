"""OmniReduce: sums by aggregators, to which workers stream the blocks that are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from laconic.architecture.allreduce import EqualWorkers
from laconic.claims import EveryRankEndsWithTheSum
from laconic.collective.sparse.blocks import omnireduce
from laconic.registry import knob, technique
from laconic.worker import Communication, Group, Reduce


@technique(
    "omnireduce",
    paper="Fei et al., SIGCOMM 2021",
    claims=[EveryRankEndsWithTheSum()],
    formula="block b crosses once from each worker where it is not zero, and once to each worker where any has it",
)
@dataclass(frozen=True)
class OmniReduce(EqualWorkers):
    """Send of a sum's tensors only the blocks that are not zero: `topk(0.01)+zero_filled+ef / omnireduce`.

    A block is sent with a pointer to the worker's next one; the aggregator of its stream adds, gives the sum to all and
    asks for the nearest next block of all workers. Pointers of four bytes a block are control. Here every worker is an
    aggregator too, of an equal share of the streams, so that a worker sends 2(N-1)/N of its tensor's blocks that are
    not zero, and D of an all-reduce's bytes are sent at a density D. With as many machines that only aggregate
    (`laconic.collective.sparse.blocks`) it sends each once, and 2(N-1)/(N·D) is gained. Select whole blocks:
    `block_topk(0.01)+zero_filled+ef`. Links are reliable: copies against loss, as switches need them, are not here. A
    plan prices the dense bound.
    """

    follows_content: ClassVar[bool] = True
    block: int = knob(256, low=1, doc="values of a block")
    fused: int = knob(8, low=1, doc="blocks of a packet, each of a stream of its own")

    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        flat = x.reshape(-1)
        if group.size == 1 or not flat.numel():
            return x
        everyone = range(group.size)
        total = yield from omnireduce(flat, group, everyone, everyone, self.block, self.fused)
        return x.copy_(total.view_as(x))
