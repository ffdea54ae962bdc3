"""The all-reduce architecture: there is no server, and every worker ends with the sum."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.architecture.base import Architecture
from laconic.claims import EveryRankEndsWithTheSum, WireFactor
from laconic.collective.generators import make_program
from laconic.collective.ragged import gather_ragged, scatter_ragged
from laconic.registry import knob, technique
from laconic.values.wire import wire_factor
from laconic.worker import (
    Broadcast,
    CodedSum,
    Communication,
    Gather,
    GatherRagged,
    Group,
    Meets,
    Merge,
    Reduce,
    ReduceScatter,
    Request,
    Scatter,
    ScatterRagged,
)

_OPERATIONS = {"reduce": "all_reduce", "gather": "all_gather", "scatter": "all_to_all"}


class EqualWorkers(Architecture):
    """What architectures without a server share: every request but a sum is a collective of the transport."""

    carries: ClassVar[tuple[type, ...] | None] = (*(Architecture.carries or ()), ScatterRagged, ReduceScatter, CodedSum)

    def carry(self, request: Request, transport: Any) -> Communication[Any]:
        group: Group = transport
        if isinstance(request, Reduce):
            return self._reduce(request, group)
        if isinstance(request, Gather):
            return _gather(request, group)
        if isinstance(request, ReduceScatter):
            return self._reduce_scatter(request, group)
        if isinstance(request, Scatter):
            return _scatter(request, group)
        if isinstance(request, ScatterRagged):
            return _scatter_ragged(request, group)
        if isinstance(request, Broadcast):
            return _broadcast(request, group)
        if isinstance(request, Merge):
            return _merge(request, group)
        if isinstance(request, CodedSum):
            return self._coded_sum(request, group)
        assert isinstance(request, GatherRagged)
        return _gather_ragged(request, group)

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        if meets in ("broadcast", "merge"):  # in the mean over all workers: up a tree and down again
            return payload_bytes * (size - 1) / size * (2 if meets == "merge" else 1)
        return payload_bytes * wire_factor(_OPERATIONS[meets], size)

    def _reduce(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        if request.op == "max":
            return (yield group.all_reduce(x, op="max"))
        if request.op == "mean":
            x.mul_(1 / group.size)
        return (yield from self._sum(request, group))

    @abstractmethod
    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        """Add the tensors of all members, each of which gets the sum in its own."""

    def _coded_sum(self, request: CodedSum, group: Group) -> Communication[Any]:
        """Add encoded tensors around a ring: no transport's own all-reduce decodes them on the way."""
        return (yield from group.run(make_program("ring", group.size), request.tensor, coding=request.coding))

    def _reduce_scatter(self, request: ReduceScatter, group: Group) -> Communication[Any]:
        return (yield group.reduce_scatter(request.tensor, control=request.control))


@technique(
    "allreduce",
    aliases=["all_reduce", "a2a"],
    paper="Patarasuk and Yuan, JPDC 2009 (bandwidth-optimal ring)",
    claims=[EveryRankEndsWithTheSum(), WireFactor(lambda size: 2 * (size - 1) / size)],
    worth_trying=["allreduce"],
)
@dataclass(frozen=True)
class AllReduce(EqualWorkers):
    """Reduce among equal workers, without a server: every worker ends with the sum.

    `order="backend"` leaves the order of sums to the transport. `order="rank"` sends the same bytes as a ring
    (all-to-all, local sum, all-gather) and always adds rank 0, 1, 2, … in this order, so that every engine gives the
    same bits.
    """

    order: str = knob(
        "backend", choices=("backend", "rank"), doc="what fixes the order of sums: the transport or the ranks"
    )

    def control_bytes(self, tensors: int, size: int, rounds: int = 1, ragged: bool = False, messages: int = 1) -> float:
        """Return what the base class says; sums in the order of ranks are padded as well, by up to N - 1 values."""
        padding = (
            4 * (size - 1) * wire_factor("all_reduce", size) * (1 + rounds) * messages if self.order == "rank" else 0
        )
        return super().control_bytes(tensors, size, rounds, ragged, messages) + padding

    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        if self.order == "rank":
            return (yield from _sum_in_rank_order(x, group, request.control))
        if request.halves and group.size > 1:
            return (yield from _in_halves(x, group, request.control))
        return (yield group.all_reduce(x, control=request.control))

    def _reduce_scatter(self, request: ReduceScatter, group: Group) -> Communication[Any]:
        if self.order == "rank":
            return (yield from _shard_in_rank_order(request.tensor, group, request.control))
        return (yield from super()._reduce_scatter(request, group))


def _sum_in_rank_order(x: Tensor, group: Group, control: float) -> Communication[Any]:
    control = _with_padding(control, x, group.size)
    mine = yield from _shard_in_rank_order(_padded(x, group.size), group, control)
    return _unpadded(x, (yield group.all_gather(mine, control=control)))


def _shard_in_rank_order(x: Tensor, group: Group, control: float) -> Communication[Any]:
    blocks = (yield group.all_to_all(x, control=control)).view(group.size, -1)
    mine = blocks[0].clone()
    for block in blocks[1:]:
        mine += block
    return mine


def _in_halves(x: Tensor, group: Group, control: float) -> Communication[Any]:
    """All-reduce as a reduce-scatter, then an all-gather: the bytes of a ring, in two operations that end
    separately."""
    control = _with_padding(control, x, group.size)
    mine = yield group.reduce_scatter(_padded(x, group.size), control=control)
    return _unpadded(x, (yield group.all_gather(mine, control=control)))


def _padded(x: Tensor, size: int) -> Tensor:
    """Return the tensor flat, padded with zeros to a multiple of `size`."""
    flat = x.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size))


def _with_padding(control: float, x: Tensor, size: int) -> float:
    """Return the share of a padded tensor that is not payload, of which there was this share before: the padding is
    none either."""
    padding = -x.numel() % size
    return (control * x.numel() + padding) / max(1, x.numel() + padding)


def _unpadded(x: Tensor, gathered: Tensor) -> Tensor:
    return x.copy_(gathered.view(-1)[: x.numel()].view_as(x))


def _gather(request: Gather, group: Group) -> Communication[Any]:
    return (yield group.all_gather(request.tensor, request.control, request.out))


def _gather_ragged(request: GatherRagged, group: Group) -> Communication[Any]:
    x = request.tensor
    parts = (x.numel(),) if request.parts is None else request.parts
    rows = yield from gather_ragged(x.reshape(-1), parts, group)
    return [row[0] for row in rows] if request.parts is None else rows


def _scatter(request: Scatter, group: Group) -> Communication[Any]:
    x = request.tensor
    return (yield group.all_to_all(x.reshape(-1), out=request.out)).view(x.shape)


def _scatter_ragged(request: ScatterRagged, group: Group) -> Communication[Any]:
    rows = yield from scatter_ragged(request.tensor, request.lengths, group)
    return rows if request.parts else [row[0] for row in rows]


def _broadcast(request: Broadcast, group: Group) -> Communication[Any]:
    return (yield group.broadcast(request.tensor, request.source))


def _merge(request: Merge, group: Group) -> Communication[Any]:
    """Combine along a binomial tree whose root is rank 0, then broadcast the result."""
    x, rank, distance = request.tensor, group.rank, 1
    while distance < group.size:
        if rank % (2 * distance) == distance:
            yield group.send(x, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < group.size:
            other = x.clone()  # a buffer of the same shape and dtype
            yield group.receive(other, rank + distance)
            x = request.combine(x, other)
        distance *= 2
    return (yield group.broadcast(x.contiguous(), 0))
