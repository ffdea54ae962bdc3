"""All-reduce: no server, every worker ends with the sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.architecture.base import Architecture, Carrying
from laconic.claims import EveryRankEndsWithTheSum, WireFactor
from laconic.registry import knob, technique
from laconic.worker import Gather, Group, Reduce, Request


@technique(
    "allreduce",
    aliases=["all_reduce", "a2a"],
    paper="Patarasuk and Yuan, JPDC 2009 (bandwidth-optimal ring)",
    claims=[EveryRankEndsWithTheSum(), WireFactor(lambda size: 2 * (size - 1) / size)],
)
@dataclass(frozen=True)
class AllReduce(Architecture):
    """Reduce among equals, without a server: every worker ends with the sum.

    `order="backend"` leaves the order of sums to the transport. `order="rank"` sends the same bytes as a ring
    (all-to-all, local sum, all-gather) and always adds rank 0, 1, 2, … in this order, so that every engine gives the
    same bits.
    """

    order: str = knob("backend", choices=("backend", "rank"), doc="who fixes the order of sums: the transport or we")

    def carry(self, request: Request, line: Any) -> Carrying:
        group: Group = line
        if isinstance(request, Reduce):
            return self._reduce(request, group)
        if isinstance(request, Gather):
            return _gather(request.tensor, group)
        return _gather_ragged(request.tensor, group)

    def sent_bytes(self, payload_bytes: float, size: int, meets: Literal["reduce", "gather"] = "reduce") -> float:
        return payload_bytes * (size - 1) * (2 / size if meets == "reduce" else 1)

    def _reduce(self, request: Reduce, group: Group) -> Carrying:
        x = request.tensor
        if request.op == "max":
            return (yield group.all_reduce(x, op="max"))
        if request.op == "mean":
            x.mul_(1 / group.size)
        if self.order == "backend":
            return (yield group.all_reduce(x, control=request.control))
        return (yield from _sum_in_rank_order(x, group, request.control))


def _sum_in_rank_order(x: Tensor, group: Group, control: float) -> Carrying:
    flat = x.reshape(-1)
    share = -(-flat.numel() // group.size)
    padded = torch.nn.functional.pad(flat, (0, share * group.size - flat.numel()))
    blocks = (yield group.all_to_all(padded, control=control)).view(group.size, share)
    mine = blocks[0].clone()
    for block in blocks[1:]:
        mine += block
    gathered = yield group.all_gather(mine, control=control)
    x.copy_(gathered.view(-1)[: flat.numel()].view_as(x))
    return x


def _gather(x: Tensor, group: Group) -> Carrying:
    return (yield group.all_gather(x))


def _gather_ragged(x: Tensor, group: Group) -> Carrying:
    length = torch.tensor([x.numel()], dtype=torch.int64, device=x.device)
    lengths = [int(n) for n in (yield group.all_gather(length, control=1.0)).view(-1)]
    everyone = yield group.all_to_all(x.reshape(-1).repeat(group.size), [x.numel()] * group.size, lengths)
    return list(everyone.split(lengths))
