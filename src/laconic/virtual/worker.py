"""Virtual workers: the interface of `worker.py` on the virtual clock.

An operation's data are exchanged as soon as all members have joined it, since nobody may look before it has ended; when
it has ended is the network's matter. Sums are made in rank order, so that a run's bits do not depend on its timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.collective import flows
from laconic.errors import LaconicError, WorkerLost
from laconic.network.flow import Flow
from laconic.network.fluid import Fluid, Job
from laconic.network.levels import Network
from laconic.runtime.batch_size import batch_of
from laconic.runtime.counted_group import CountedGroup, sum_in_order
from laconic.runtime.ledger import Ledger
from laconic.virtual.clock import Clock, Operation, Runner
from laconic.virtual.compute import Compute, Part
from laconic.virtual.recording import Recording
from laconic.virtual.rpc import VirtualRpc
from laconic.virtual.send_queue import VirtualSendQueue
from laconic.virtual.sharing import Family, Replica
from laconic.worker import Actor, ActorMessage, Group, Home, Priority

Act = Callable[[list[Any]], tuple[list[Any], Flow]]
"""Carries an operation out: from all members' tensors to their results, and what that sends."""


class World:
    """What all virtual workers of a simulation share."""

    def __init__(self, fluid: Fluid, network: Network, compute: Compute, switched: Callable[[int], None]) -> None:
        self.clock = Clock(fluid, switched, self._lose)
        self.network, self.compute = network, compute
        self.heartbeat_seconds = 20.0
        self.gatherings: dict[tuple[Any, ...], Gathering] = {}
        self.lost: dict[int, tuple[float, WorkerLost]] = {}  # by rank: when the others notice, and what they say
        self.ever_lost: set[int] = set()
        self._flying: set[Gathering] = set()
        self.absent: tuple[int, ...] = ()  # who is not there from the start
        self.families: dict[int, Family] = {}
        self.memories: dict[tuple[int, int], Tensor] = {}  # that workers share, by group and number
        self._numbers: dict[tuple[int, ...], int] = {}
        self.recording: Recording | None = None
        self.rpc = VirtualRpc(self, 0, network.size)

    def number(self, ranks: tuple[int, ...]) -> int:
        """A group's number: a thousand ranks would be slow to look up by."""
        return self._numbers.setdefault(ranks, len(self._numbers))

    def carry(self, gathering: Gathering, job: Job, seconds: float) -> None:
        """Everybody has come: the network takes over."""
        self._flying.add(gathering)
        self.clock.fluid.add(job, seconds)

    def carried(self, gathering: Gathering, seconds: float) -> None:
        if gathering in self._flying:
            self._flying.remove(gathering)
            self.clock.end(gathering, seconds)

    def _lose(self, runner: Runner) -> None:
        """A worker's life has ended: whatever it takes part in will never be, as the others notice sooner or later."""
        how, silence = ("left", 0.0) if runner.life.says_goodbye else ("died", self.heartbeat_seconds)
        error = WorkerLost(
            f"rank {runner.rank} {how} at {runner.seconds:g} s of virtual time. Let it return and start again from a "
            "checkpoint (restarts), or choose a strategy that goes on without it"
        )
        self.ever_lost.add(runner.rank)
        self.lost[runner.rank] = (runner.seconds + silence, error)
        for gathering in [*self.gatherings.values(), *self._flying]:
            self.break_if_lost(gathering)
        noticed = runner.seconds + silence
        self.clock.at(noticed, lambda: self.rpc.lose(runner.rank, noticed) if runner.rank in self.lost else None)

    def break_if_lost(self, gathering: Gathering) -> None:
        """An operation with a lost member fails when that is noticed."""
        losses = [self.lost[rank] for rank in gathering.group if rank in self.lost]
        if losses and not gathering.broken:
            gathering.broken = True
            self._flying.discard(gathering)
            noticed, error = min(losses, key=lambda loss: loss[0])
            noticed = max(noticed, gathering.latest_seconds)
            self.clock.at(noticed, lambda: self.clock.end(gathering, noticed, error))


class Gathering(Operation):
    """One collective: complete when all members have come with their tensors."""

    def __init__(self, world: World, group: tuple[int, ...], what: str) -> None:
        super().__init__(what)
        self._world, self.group = world, group
        self.tensors: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.latest_seconds = 0.0
        self.broken = False  # a member is lost: it will fail, whoever else comes

    def join(self, place: int, tensor: Any, act: Act) -> bool:
        """Come with a tensor; the last to come carries the operation out. Says whether everybody has come."""
        self.tensors[place] = tensor
        self.latest_seconds = max(self.latest_seconds, self._world.clock.runner(self.group[place]).seconds)
        if self.broken or len(self.tensors) < len(self.group):
            return False
        results, flow = act([self.tensors[k] for k in range(len(self.group))])
        self.results = dict(enumerate(results))
        lane = self._world.number(self.group)
        job = self._world.network.job(
            self.what, self.tensors[0], flow, self.group, lambda t: self._world.carried(self, t), lane
        )
        if self._world.recording is not None:
            self._world.recording.follow(job, self.what, self.group, self.tensors, self.latest_seconds)
        self._world.carry(self, job, self.latest_seconds)
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


class CallHandle(VirtualHandle):
    """A letter under way. Its answer may be there before anybody waits for it, so that whoever asks must let the world
    catch up first."""

    def done(self) -> bool:
        self._worker.catch_up()
        return super().done()


class VirtualGroup(CountedGroup):
    """Collectives among virtual workers: matched by their order, as a backend matches them."""

    def __init__(self, worker: VirtualWorker, ranks: tuple[int, ...]) -> None:
        super().__init__(ranks.index(worker.rank) if worker.rank in ranks else -1, ranks, worker.ledger)
        self._worker, self._number = worker, worker.number(ranks)
        self._count_of_collectives = 0
        self._messages: dict[tuple[int, int, int], int] = {}

    def barrier(self) -> VirtualHandle:
        return self._meet("barrier", None, lambda all_: ([None] * self.size, flows.barrier(self.size)))

    def _all_reduce(self, tensor: Tensor, op: str) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            combined = sum_in_order(tensors) if op == "sum" else torch.stack(tensors).amax(0)
            for x in tensors:
                x.copy_(combined)
            return tensors, flows.all_reduce(self.size, combined.nbytes)

        return self._meet(f"all_reduce of {tensor.numel()} {op}", tensor, act)

    def _all_gather(self, tensor: Tensor) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            stacked, n = torch.stack(tensors), self.size
            results = [stacked, *(stacked.clone() for _ in range(n - 1))]
            return results, flows.all_gather(n, tensors[0].nbytes)

        return self._meet(f"all_gather of {tensor.numel()}", tensor, act)

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int]) -> VirtualHandle:
        def act(given: list[tuple[Tensor, list[int]]]) -> tuple[list[Tensor], Flow]:
            blocks = [x.split(lengths) for x, lengths in given]
            n = self.size
            results = [torch.cat([blocks[source][place] for source in range(n)]) for place in range(n)]
            return results, flows.all_to_all([[len(b) * given[0][0].element_size() for b in row] for row in blocks])

        return self._meet("all_to_all", (tensor, sends), act)

    def _reduce_scatter(self, flat: Tensor) -> VirtualHandle:
        share, n = flat.numel() // self.size, self.size

        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            total = sum_in_order(tensors)
            return [part.clone() for part in total.split(share)], flows.all_to_all(np.full((n, n), total.nbytes / n))

        return self._meet("reduce_scatter", flat, act)

    def _broadcast(self, tensor: Tensor, root: int) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            for k, x in enumerate(tensors):
                if k != root:
                    x.copy_(tensors[root])
            return tensors, flows.broadcast(self.size, root, tensors[root].nbytes)

        return self._meet(f"broadcast from {root}", tensor, act)

    def _send(self, tensor: Tensor, to: int, tag: int) -> VirtualHandle:
        return self._message(self.rank, to, tag, tensor.clone(), sending=True)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> VirtualHandle:
        return self._message(source, self.rank, tag, tensor, sending=False)

    def _message(self, source: int, to: int, tag: int, tensor: Tensor, sending: bool) -> VirtualHandle:
        """A message is a gathering of two, in the order of its (source, destination, tag)."""
        count = self._messages[source, to, tag] = self._messages.get((source, to, tag), 0) + 1
        pair = (self.ranks[source], self.ranks[to])

        def act(two: list[Tensor]) -> tuple[list[Tensor], Flow]:
            two[1].copy_(two[0])
            return two, flows.message(two[0].nbytes)

        key = (self._number, *pair, tag, count)
        return self._worker.meet(key, pair, 0 if sending else 1, f"message {source}→{to}", tensor, act)

    def _meet(self, what: str, tensor: Any, act: Act) -> VirtualHandle:
        if self.rank < 0:
            raise LaconicError(f"rank {self._worker.rank} is not a member of the group {self.ranks}")
        self._count_of_collectives += 1
        key = (self._number, self._count_of_collectives)
        return self._worker.meet(key, self.ranks, self.rank, what, tensor, act)


class VirtualWorker:
    """One virtual participant."""

    def __init__(self, world: World, rank: int, size: int, ledger: Ledger) -> None:
        self._world, self.rank, self.size, self.ledger = world, rank, size, ledger
        world.lost.pop(rank, None)
        world.rpc.begin_life(rank, ledger)
        self.waited_seconds = 0.0
        self.world = VirtualGroup(self, tuple(range(size)))
        self._groups = {self.world.ranks: self.world}
        self._step = self._models = self._memories = 0
        self._factor = world.compute.factor(rank, 0)
        self._finishers: list[Callable[[], None]] = []
        self._queue = VirtualSendQueue(world.clock)

    def number(self, ranks: tuple[int, ...]) -> int:
        return self._world.number(ranks)

    @property
    def host_size(self) -> int:
        levels = self._world.network.levels
        return levels[1].workers if len(levels) > 1 else self.size

    def clock_seconds(self) -> float:
        return self._world.clock.runner(self.rank).seconds

    def group(self, ranks: Sequence[int]) -> VirtualGroup:
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = VirtualGroup(self, key)
        return self._groups[key]

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        self._world.rpc.host(address, home, build, self._world.absent)

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> CallHandle:
        now, say = self.clock_seconds(), partial(self._world.rpc.call, self.rank, address, message, writes)
        if priority is None:
            call = say(now)
            return CallHandle(self, call, lambda: call.message)
        return CallHandle(self, self._queue.put(say, priority, message.nbytes, now, message.kind), lambda: None)

    def say_goodbye(self) -> None:
        """Nobody waits at a server for a worker whose script has ended."""
        self._world.rpc.say_goodbye(self.rank, self.clock_seconds())

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> Tensor:
        key = (self.number(group.ranks), self._memories)
        self._memories += 1
        return self._world.memories.setdefault(key, torch.zeros(numel, dtype=dtype))

    def catch_up(self) -> None:
        """Let everything happen that comes before this worker's time."""
        now = self.clock_seconds()
        here = Operation("the present")
        self._world.clock.at(now, lambda: self._world.clock.end(here, now))
        self.wait(here)

    def computed(self, part: Part, share: float = 1.0, name: str | None = None) -> None:
        """Time passes on this worker, without giving the baton away: this is called inside hooks too."""
        compute = self._world.compute
        runner = self._world.clock.runner(self.rank)
        begin = runner.seconds
        taken = compute.seconds(part, share, name) * self._factor * compute.share_of_batch(part, batch_of(self))
        if self._world.network.measured is not None and taken:
            self._world.clock.fluid.computing(begin, begin + taken, 1 / self.size)
        try:
            runner.pass_time(taken, step_ends=part == "step")
        finally:
            if self._world.recording is not None:
                self._world.recording.recorders[self.rank].computed(part, name, begin, runner.seconds)
        if part == "step":
            self._step += 1
            self._factor = compute.factor(self.rank, self._step)

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        for numel in elements if self._world.compute.codecs else ():
            self.computed(part, numel, words)

    def stepper(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]
    ) -> Callable[[], None] | None:
        """Equal workers share memory and steps: the n-th model of each worker is the same model."""
        family = self._world.families.setdefault(self._models, Family())
        self._models += 1
        shareable = Replica.possible(optimizer, parameters)
        return Replica(family, optimizer, parameters, equal).step if shareable else None

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        self._finishers.append(finish)

    def backward_ended(self) -> None:
        """Called in the worker's own thread when its outermost backward has returned."""
        finishers, self._finishers = self._finishers, []
        for finish in finishers:
            finish()

    def wait(self, operation: Operation) -> None:
        runner = self._world.clock.runner(self.rank)
        begin = runner.seconds
        try:
            self._world.clock.wait(runner, operation)
        finally:
            self.waited_seconds += runner.seconds - begin
            if self._world.recording is not None:
                self._world.recording.waited(self.rank, operation.what, begin, runner.seconds)

    def meet(
        self,
        key: tuple[Any, ...],
        members: tuple[int, ...],
        place: int,
        what: str,
        tensor: Any,
        act: Act,
    ) -> VirtualHandle:
        gatherings = self._world.gatherings
        gathering = gatherings.get(key)
        if gathering is None:
            gathering = gatherings[key] = Gathering(self._world, members, what)
            if self._world.lost:
                gathering.latest_seconds = self.clock_seconds()
                self._world.break_if_lost(gathering)
        if gathering.join(place, tensor, act):
            del gatherings[key]
        return VirtualHandle(self, gathering, lambda: gathering.results.pop(place))
