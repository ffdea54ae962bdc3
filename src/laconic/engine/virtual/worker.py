"""Virtual workers: the interface of `worker.py` on the virtual clock.

An operation's data are exchanged as soon as all members have joined it, since nobody may look before it has ended; when
it has ended is the network's matter. Sums are made in rank order, so that a run's bits do not depend on its timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.engine.group import CountedGroup, sum_in_order, tree_children
from laconic.engine.ledger import Ledger
from laconic.engine.virtual.clock import Clock, Operation
from laconic.engine.virtual.compute import Compute, Part
from laconic.engine.virtual.fluid import Job
from laconic.engine.virtual.network import Network
from laconic.errors import LaconicError

Transfers = list[tuple[int, int, float]]
"""(source, destination, bytes), by place in the group."""


class World:
    """What all virtual workers of a simulation share."""

    def __init__(self, clock: Clock, network: Network, compute: Compute) -> None:
        self.clock, self.network, self.compute = clock, network, compute
        self.gatherings: dict[tuple[Any, ...], Gathering] = {}


class Gathering(Operation):
    """One collective: complete when all members have come with their tensors."""

    def __init__(self, world: World, group: tuple[int, ...], what: str) -> None:
        super().__init__(what)
        self._world, self._group = world, group
        self.tensors: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self._latest = 0.0

    def join(self, place: int, tensor: Any, act: Callable[[list[Any]], tuple[list[Any], Transfers, int]]) -> bool:
        """Come with a tensor; the last to come carries the operation out. Says whether everybody has come."""
        self.tensors[place] = tensor
        self._latest = max(self._latest, self._world.clock.runner(self._group[place]).seconds)
        if len(self.tensors) < len(self._group):
            return False
        results, transfers, rounds = act([self.tensors[k] for k in range(len(self._group))])
        self.results = dict(enumerate(results))
        sources, destinations = [self._group[a] for a, _, _ in transfers], [self._group[b] for _, b, _ in transfers]
        links, load_bytes, latency = self._world.network.load(sources, destinations, [n for _, _, n in transfers])
        job = Job(links, load_bytes, rounds * latency, lambda t: self._world.clock.end(self, t), lane=self._group)
        self._world.clock.fluid.add(job, self._latest)
        return True


class VirtualHandle:
    """A member's view of an operation."""

    def __init__(self, worker: VirtualWorker, operation: Operation, result: Callable[[], Any]) -> None:
        self._worker, self._operation, self._result = worker, operation, result

    def done(self) -> bool:
        ended = self._operation.ended_seconds
        return ended is not None and ended <= self._worker.clock_seconds()

    def wait(self) -> Any:
        self._worker.wait(self._operation)
        return self._result()


class VirtualGroup(CountedGroup):
    """Collectives among virtual workers: matched by their order, as a backend matches them."""

    def __init__(self, worker: VirtualWorker, ranks: tuple[int, ...]) -> None:
        super().__init__(ranks.index(worker.rank) if worker.rank in ranks else -1, ranks, worker.ledger)
        self._worker = worker
        self._count_of_collectives = 0
        self._messages: dict[tuple[int, int, int], int] = {}

    def barrier(self) -> VirtualHandle:
        n = self.size
        return self._meet("barrier", None, lambda all_: ([None] * n, ring(n, 1.0), 2 * (n - 1)))

    def _all_reduce(self, tensor: Tensor, op: str) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Transfers, int]:
            combined = sum_in_order(tensors) if op == "sum" else torch.stack(tensors).amax(0)
            for x in tensors:
                x.copy_(combined)
            n = self.size
            return tensors, ring(n, 2 * (n - 1) / n * combined.nbytes), 2 * (n - 1)

        return self._meet(f"all_reduce of {tensor.numel()} {op}", tensor, act)

    def _all_gather(self, tensor: Tensor) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Transfers, int]:
            stacked, n = torch.stack(tensors), self.size
            results = [stacked, *(stacked.clone() for _ in range(n - 1))]
            return results, ring(n, (n - 1) * tensors[0].nbytes), n - 1

        return self._meet(f"all_gather of {tensor.numel()}", tensor, act)

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int]) -> VirtualHandle:
        def act(given: list[tuple[Tensor, list[int]]]) -> tuple[list[Tensor], Transfers, int]:
            blocks = [x.split(lengths) for x, lengths in given]
            n = self.size
            results = [torch.cat([blocks[source][place] for source in range(n)]) for place in range(n)]
            transfers = [(a, b, float(blocks[a][b].nbytes)) for a in range(n) for b in range(n) if a != b]
            return results, transfers, 1

        return self._meet("all_to_all", (tensor, sends), act)

    def _reduce_scatter(self, flat: Tensor) -> VirtualHandle:
        share = flat.numel() // self.size

        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Transfers, int]:
            total, n = sum_in_order(tensors), self.size
            pairs = [(a, b, float(total.nbytes / n)) for a in range(n) for b in range(n) if a != b]
            return [part.clone() for part in total.split(share)], pairs, 1

        return self._meet("reduce_scatter", flat, act)

    def _broadcast(self, tensor: Tensor, root: int) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Transfers, int]:
            n = self.size
            for k, x in enumerate(tensors):
                if k != root:
                    x.copy_(tensors[root])
            edges = [
                ((a + root) % n, (b + root) % n, float(tensors[root].nbytes))
                for a in range(n)
                for b in tree_children(a, n)
            ]
            return tensors, edges, (n - 1).bit_length()

        return self._meet(f"broadcast from {root}", tensor, act)

    def _send(self, tensor: Tensor, to: int, tag: int) -> VirtualHandle:
        return self._message(self.rank, to, tag, tensor.clone(), sending=True)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> VirtualHandle:
        return self._message(source, self.rank, tag, tensor, sending=False)

    def _message(self, source: int, to: int, tag: int, tensor: Tensor, sending: bool) -> VirtualHandle:
        """A message is a gathering of two, in the order of its (source, destination, tag)."""
        count = self._messages[source, to, tag] = self._messages.get((source, to, tag), 0) + 1
        pair = (self.ranks[source], self.ranks[to])

        def act(two: list[Tensor]) -> tuple[list[Tensor], Transfers, int]:
            two[1].copy_(two[0])
            return [two[0], two[1]], [(0, 1, float(two[0].nbytes))], 1

        key = ("message", self.ranks, pair, tag, count)
        return self._worker.meet(key, pair, 0 if sending else 1, f"message {source}→{to}", tensor, act)

    def _meet(self, what: str, tensor: Any, act: Callable[[list[Any]], Any]) -> VirtualHandle:
        if self.rank < 0:
            raise LaconicError(f"rank {self._worker.rank} is not a member of the group {self.ranks}")
        self._count_of_collectives += 1
        key = (self.ranks, self._count_of_collectives)
        return self._worker.meet(key, self.ranks, self.rank, what, tensor, act)


class VirtualWorker:
    """One virtual participant."""

    def __init__(self, world: World, rank: int, size: int) -> None:
        self._world, self.rank, self.size = world, rank, size
        self.ledger = Ledger()
        self.world = VirtualGroup(self, tuple(range(size)))
        self._groups = {self.world.ranks: self.world}
        self._step = 0
        self._factor = world.compute.factor(rank, 0)
        self._finishers: list[Callable[[], None]] = []

    @property
    def machine_size(self) -> int:
        levels = self._world.network.levels
        return levels[1].workers if len(levels) > 1 else self.size

    def clock_seconds(self) -> float:
        return self._world.clock.runner(self.rank).seconds

    def group(self, ranks: Sequence[int]) -> VirtualGroup:
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = VirtualGroup(self, key)
        return self._groups[key]

    def computed(self, part: Part, share: float = 1.0, name: str | None = None) -> None:
        """Time passes on this worker, without giving the baton away: this is called inside hooks too."""
        compute = self._world.compute
        runner = self._world.clock.runner(self.rank)
        runner.seconds += compute.seconds(part, share, name) * self._factor
        if part == "step":
            self._step += 1
            self._factor = compute.factor(self.rank, self._step)

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        self._finishers.append(finish)

    def backward_ended(self) -> None:
        """Called in the worker's own thread when its outermost backward has returned."""
        finishers, self._finishers = self._finishers, []
        for finish in finishers:
            finish()

    def wait(self, operation: Operation) -> None:
        self._world.clock.wait(self._world.clock.runner(self.rank), operation)

    def meet(
        self,
        key: tuple[Any, ...],
        members: tuple[int, ...],
        place: int,
        what: str,
        tensor: Any,
        act: Callable[[list[Any]], Any],
    ) -> VirtualHandle:
        gatherings = self._world.gatherings
        gathering = gatherings.get(key)
        if gathering is None:
            gathering = gatherings[key] = Gathering(self._world, members, what)
        if gathering.join(place, tensor, act):
            del gatherings[key]
        return VirtualHandle(self, gathering, lambda: gathering.results.pop(place))


def ring(size: int, nbytes: float) -> Transfers:
    """What a ring's edges carry."""
    return [(k, (k + 1) % size, nbytes) for k in range(size)] if size > 1 else []
