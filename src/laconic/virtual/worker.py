"""Virtual workers: the interface of `worker.py` on the virtual clock.

An operation's data are exchanged as soon as all members have joined it, since nobody may read them before it has ended;
the network model decides when that is. Sums are made in rank order, so that a run's bits do not depend on its timing.
"""

from __future__ import annotations

import math
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
from laconic.network.network_tree import Network
from laconic.runtime.batch_size import batch_of
from laconic.runtime.counted_group import CountedGroup, sum_in_order
from laconic.runtime.ledger import Ledger
from laconic.virtual.clock import Clock, Operation, Runner
from laconic.virtual.compute import Compute, Part
from laconic.virtual.gathered import AllGathered
from laconic.virtual.recording import Recording
from laconic.virtual.rpc import VirtualRpc
from laconic.virtual.send_queue import VirtualSendQueue
from laconic.virtual.sharing import Family, Replica
from laconic.worker import Actor, ActorMessage, Group, Home, Priority

Act = Callable[[list[Any]], tuple[list[Any], Flow]]
"""A function that carries an operation out: from all members' tensors to their results, and the flow this sends."""


class Simulation:
    """The state that all virtual workers of a simulation share: clock, network, operations in flight, lost workers."""

    def __init__(self, fluid: Fluid, network: Network, compute: Compute, switched: Callable[[int], None]) -> None:
        self.clock = Clock(fluid, switched, self._lose)
        self.network, self.compute = network, compute
        self.heartbeat_seconds = 20.0
        self.open_calls: dict[tuple[Any, ...], CollectiveCall] = {}
        self.lost: dict[int, tuple[float, WorkerLost]] = {}  # by rank: when the others notice, and what they raise
        self.ever_lost: set[int] = set()
        self._in_flight: set[CollectiveCall] = set()
        self.absent: tuple[int, ...] = ()  # ranks that join later
        self.families: dict[int, Family] = {}
        self.gathered = AllGathered()
        self.computations: dict[int, tuple[Callable[[list[Any]], list[Any]], JointComputation]] = {}
        self.streams: dict[torch.device, torch.cuda.Stream] = {}
        self.memories: dict[tuple[int, int], Tensor] = {}  # memory that workers share, by group and number
        self._numbers: dict[tuple[int, ...], int] = {}
        self.recording: Recording | None = None
        self.rpc = VirtualRpc(self, 0, network.size)

    def number(self, ranks: tuple[int, ...]) -> int:
        """Return a group's number, which is faster to look up by than a thousand ranks."""
        return self._numbers.setdefault(ranks, len(self._numbers))

    def start_transfer(self, call: CollectiveCall, job: Job, seconds: float) -> None:
        """Hand an operation that all members have joined to the network."""
        self._in_flight.add(call)
        self.clock.fluid.add(job, seconds)

    def transfer_ended(self, call: CollectiveCall, seconds: float) -> None:
        """End an operation whose transfer is complete, unless it has failed meanwhile."""
        if call in self._in_flight:
            self._in_flight.remove(call)
            self.clock.end(call, seconds)

    def _lose(self, runner: Runner) -> None:
        """Fail the operations of a worker whose life has ended, at the time at which the others notice."""
        how, silence = ("left", 0.0) if runner.life.leaves_gracefully else ("died", self.heartbeat_seconds)
        error = WorkerLost(
            f"rank {runner.rank} {how} at {runner.seconds:g} s of virtual time. Let it return and start again from a "
            "checkpoint (restarts), or choose a strategy that goes on without it"
        )
        self.ever_lost.add(runner.rank)
        self.lost[runner.rank] = (runner.seconds + silence, error)
        for call in [*self.open_calls.values(), *self._in_flight]:
            self.fail_if_lost(call)
        noticed_seconds = runner.seconds + silence
        self.clock.at(
            noticed_seconds, lambda: self.rpc.lose(runner.rank, noticed_seconds) if runner.rank in self.lost else None
        )

    def fail_if_lost(self, call: CollectiveCall) -> None:
        """Let an operation with a lost member fail at the time at which the loss is noticed."""
        losses = [self.lost[rank] for rank in call.group if rank in self.lost]
        if losses and not call.will_fail:
            call.will_fail = True
            self._in_flight.discard(call)
            noticed_seconds, error = min(losses, key=lambda loss: loss[0])
            noticed_seconds = max(noticed_seconds, call.latest_seconds)
            self.clock.at(noticed_seconds, lambda: self.clock.end(call, noticed_seconds, error))


class CollectiveCall(Operation):
    """One call of a collective, or one message: complete when all its members have joined with their tensors."""

    def __init__(self, simulation: Simulation, group: tuple[int, ...], what: str) -> None:
        super().__init__(what)
        self._simulation, self.group = simulation, group
        self.tensors: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.latest_seconds = 0.0
        self.will_fail = False  # a member is lost: it will fail, whoever else joins

    def join(self, place: int, tensor: Any, act: Act) -> bool:
        """Join with a tensor; the last member carries the operation out. Return whether all members have joined."""
        self.tensors[place] = tensor
        self.latest_seconds = max(self.latest_seconds, self._simulation.clock.runner(self.group[place]).seconds)
        if self.will_fail or len(self.tensors) < len(self.group):
            return False
        results, flow = act([self.tensors[k] for k in range(len(self.group))])
        self.results = dict(enumerate(results))
        lane = self._simulation.number(self.group)
        job = self._simulation.network.job(
            self.what, self.tensors[0], flow, self.group, lambda t: self._simulation.transfer_ended(self, t), lane
        )
        if self._simulation.recording is not None:
            self._simulation.recording.follow(job, self.what, self.group, self.tensors, self.latest_seconds)
        self._simulation.start_transfer(self, job, self.latest_seconds)
        return True


class JointComputation(Operation):
    """What all workers compute at once: complete when each has given its part."""

    def __init__(self) -> None:
        super().__init__("a computation of all workers")
        self.given: dict[int, Any] = {}
        self.results: list[Any] = []


class VirtualHandle:
    """A member's handle of an operation."""

    def __init__(self, worker: VirtualWorker, operation: Operation, result: Callable[[], Any]) -> None:
        self._worker, self._operation, self._result = worker, operation, result

    def done(self) -> bool:
        ended = self._operation.ended_seconds
        return ended is not None and ended <= self._worker.clock_seconds()

    def wait(self) -> Any:
        self._worker.wait(self._operation)
        return self._result()

    def then(self, read: Callable[[Any], Any]) -> VirtualHandle:
        """Return a handle of the same operation, whose result is passed through a function."""
        return VirtualHandle(self._worker, self._operation, lambda: read(self._result()))


class CallHandle(VirtualHandle):
    """The handle of a call to an actor.

    Its answer may arrive before anybody waits for it, so that `done` first lets earlier events happen.
    """

    def done(self) -> bool:
        self._worker.catch_up()
        return super().done()


class VirtualGroup(CountedGroup):
    """A group of virtual workers, whose collectives are matched by their order, as a backend matches them."""

    def __init__(self, worker: VirtualWorker, ranks: tuple[int, ...]) -> None:
        place = ranks.index(worker.rank) if worker.rank in ranks else -1
        super().__init__(place, ranks, worker.ledger, worker.host_size)
        self._worker, self._number, self._gathered = worker, worker.number(ranks), worker.gathered
        self._count_of_collectives = 0
        self._messages: dict[tuple[int, int, int], int] = {}

    def clock_seconds(self) -> float:
        return self._worker.clock_seconds()

    def barrier(self) -> VirtualHandle:
        return self._join_collective("barrier", None, lambda tensors: ([None] * self.size, flows.barrier(self.size)))

    def _all_reduce(self, tensor: Tensor, op: str) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            combined = sum_in_order(tensors) if op == "sum" else torch.stack(tensors).amax(0)
            torch._foreach_copy_(tensors, [combined] * self.size)
            return tensors, flows.all_reduce(self.size, combined.nbytes)

        return self._join_collective(f"all_reduce of {tensor.numel()} {op}", tensor, act)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            rows = self._gathered.keep(torch.stack(tensors))
            return [rows] * self.size, flows.all_gather(self.size, tensors[0].nbytes)

        handle = self._join_collective(f"all_gather of {tensor.numel()}", tensor, act)
        return handle.then(self._gathered.checked)

    def compute_alike(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        self._gathered.compute(answer, into, compute)

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> VirtualHandle:
        def act(given: list[tuple[Tensor, list[int]]]) -> tuple[list[Tensor], Flow]:
            blocks = [x.split(lengths) for x, lengths in given]
            n = self.size
            results = [torch.cat([blocks[source][place] for source in range(n)]) for place in range(n)]
            return results, flows.all_to_all([[len(b) * given[0][0].element_size() for b in row] for row in blocks])

        return self._join_collective("all_to_all", (tensor, sends), act)

    def _reduce_scatter(self, flat: Tensor) -> VirtualHandle:
        share, n = flat.numel() // self.size, self.size

        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            total = sum_in_order(tensors)
            return [part.clone() for part in total.split(share)], flows.all_to_all(np.full((n, n), total.nbytes / n))

        return self._join_collective("reduce_scatter", flat, act)

    def _broadcast(self, tensor: Tensor, root: int) -> VirtualHandle:
        def act(tensors: list[Tensor]) -> tuple[list[Tensor], Flow]:
            for k, x in enumerate(tensors):
                if k != root:
                    x.copy_(tensors[root])
            return tensors, flows.broadcast(self.size, root, tensors[root].nbytes)

        return self._join_collective(f"broadcast from {root}", tensor, act)

    def _send(self, tensor: Tensor, to: int, tag: int) -> VirtualHandle:
        return self._message(self.rank, to, tag, tensor.clone(), sending=True)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> VirtualHandle:
        return self._message(source, self.rank, tag, tensor, sending=False)

    def _message(self, source: int, to: int, tag: int, tensor: Tensor, sending: bool) -> VirtualHandle:
        """Send or receive: a call with two members, matched by the order of its (source, destination, tag)."""
        count = self._messages[source, to, tag] = self._messages.get((source, to, tag), 0) + 1
        pair = (self.ranks[source], self.ranks[to])

        def act(two: list[Tensor]) -> tuple[list[Tensor], Flow]:
            two[1].copy_(two[0])
            return two, flows.message(two[0].nbytes)

        key = (self._number, *pair, tag, count)
        return self._worker.join_collective(key, pair, 0 if sending else 1, f"message {source}→{to}", tensor, act)

    def _join_collective(self, what: str, tensor: Any, act: Act) -> VirtualHandle:
        if self.rank < 0:
            raise LaconicError(f"rank {self._worker.rank} is not a member of the group {self.ranks}")
        self._count_of_collectives += 1
        key = (self._number, self._count_of_collectives)
        return self._worker.join_collective(key, self.ranks, self.rank, what, tensor, act)


class VirtualWorker:
    """One worker on the virtual clock: see `worker.Worker`."""

    def __init__(self, simulation: Simulation, rank: int, size: int, ledger: Ledger) -> None:
        self._simulation, self.rank, self.size, self.ledger = simulation, rank, size, ledger
        simulation.lost.pop(rank, None)
        simulation.rpc.begin_life(rank, ledger)
        self.waited_seconds = 0.0
        self.world = VirtualGroup(self, tuple(range(size)))
        self._groups = {self.world.ranks: self.world}
        self._step = self._models = self._memories = 0
        self._factor = simulation.compute.factor(rank, 0)
        self._finishers: list[Callable[[], None]] = []
        self._computations: dict[Any, int] = {}
        self._queue = VirtualSendQueue(simulation.clock)

    def number(self, ranks: tuple[int, ...]) -> int:
        return self._simulation.number(ranks)

    @property
    def gathered(self) -> AllGathered:
        """What the workers of this simulation have gathered, which they share."""
        return self._simulation.gathered

    @property
    def host_size(self) -> int:
        return self._simulation.network.host_size

    @property
    def steps(self) -> int:
        """The number of steps that this worker has taken."""
        return self._step

    def clock_seconds(self) -> float:
        return self._simulation.clock.runner(self.rank).seconds

    def group(self, ranks: Sequence[int]) -> VirtualGroup:
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = VirtualGroup(self, key)
        return self._groups[key]

    def adopt(self, process_group: Any) -> VirtualGroup:
        """Return the group of virtual workers that a process group of `laconic.init_device_mesh` stands for."""
        group = getattr(process_group, "virtual", None)
        if not isinstance(group, VirtualGroup):
            raise LaconicError("on virtual workers, make the mesh with laconic.init_device_mesh")
        return group

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        self._simulation.rpc.host(address, home, build, self._simulation.absent)

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> CallHandle:
        now, send = self.clock_seconds(), partial(self._simulation.rpc.call, self.rank, address, message, writes)
        if priority is None:
            call = send(now)
            return CallHandle(self, call, lambda: call.message)
        return CallHandle(self, self._queue.put(send, priority, message.nbytes, now, message.kind), lambda: None)

    def leave(self) -> None:
        """Tell the servers that this worker's script has ended, so that they do not wait for it."""
        self._simulation.rpc.leave(self.rank, self.clock_seconds())

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> Tensor:
        key = (self.number(group.ranks), self._memories)
        self._memories += 1
        return self._simulation.memories.setdefault(key, torch.zeros(numel, dtype=dtype))

    def communication_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """Return the stream on which the exchanges of all virtual workers of a GPU compute: one for all, so that each
        of them finds complete what another has put in a message."""
        if device.type != "cuda":
            return None
        streams = self._simulation.streams
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        return streams[device]

    def catch_up(self) -> None:
        """Let all events happen that are earlier than this worker's time."""
        now = self.clock_seconds()
        here = Operation("the present")
        self._simulation.clock.at(now, lambda: self._simulation.clock.end(here, now))
        self.wait(here)

    @property
    def times_gradients(self) -> bool:
        """Whether gradients take time, or are recorded one by one, or this worker's life may end between two."""
        compute, life = self._simulation.compute, self._simulation.clock.runner(self.rank).life
        timed = compute.backward_seconds > 0 or bool(compute.backward_by_tensor)
        return timed or self._simulation.recording is not None or math.isfinite(life.end_seconds)

    def computed(self, part: Part, share: float = 1.0, name: str | None = None) -> None:
        """Advance this worker's time without giving the baton away: this is called inside hooks too."""
        simulation, compute = self._simulation, self._simulation.compute
        runner = simulation.clock.runner(self.rank)
        begin = runner.seconds
        seconds = compute.seconds(part, share, name) * self._factor
        if compute.batch is not None:
            seconds *= compute.share_of_batch(part, batch_of(self))
        if simulation.network.measured is not None and seconds:
            simulation.clock.fluid.computing(begin, begin + seconds, 1 / self.size)
        try:
            runner.pass_time(seconds, step_ends=part == "step")
        finally:
            if simulation.recording is not None:
                simulation.recording.recorders[self.rank].computed(part, name, begin, runner.seconds)
        if part == "step":
            self._step += 1
            self._factor = compute.factor(self.rank, self._step)

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        seconds = self._simulation.compute.coding_seconds(part, words, elements)
        if seconds:
            self.computed(part, seconds, words)

    def stepper(
        self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]
    ) -> Callable[[], None] | None:
        """Return a step that equal workers share, with its memory: the n-th model of each worker is the same model."""
        family = self._simulation.families.setdefault(self._models, Family())
        self._models += 1
        shareable = Replica.possible(optimizer, parameters)
        return Replica(family, optimizer, parameters, equal).step if shareable else None

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        self._finishers.append(finish)

    def backward_ended(self) -> None:
        """Run the pending callbacks, in the worker's own thread, when its outermost backward has returned."""
        finishers, self._finishers = self._finishers, []
        for finish in finishers:
            finish()

    def wait(self, operation: Operation) -> None:
        """Block until the operation has ended, and count the time as waiting."""
        runner = self._simulation.clock.runner(self.rank)
        begin = runner.seconds
        try:
            self._simulation.clock.wait(runner, operation)
        finally:
            self.waited_seconds += runner.seconds - begin
            if self._simulation.recording is not None:
                self._simulation.recording.waited(self.rank, operation.what, begin, runner.seconds)

    def compute_together(self, what: Any, make: Callable[[], Callable[[list[Any]], list[Any]]], given: Any) -> Any:
        """Return this worker's part of what is computed at once from what all workers give; nobody's time passes.

        Every worker's n-th computation, in the order in which it first comes with each, is the same one; the first
        worker to come makes it.
        """
        key = self._computations.setdefault(what, len(self._computations))
        computations = self._simulation.computations
        if key not in computations:
            computations[key] = make(), JointComputation()
        compute, joint = computations[key]
        joint.given[self.rank] = given
        if len(joint.given) == self.size:
            computations[key] = compute, JointComputation()
            joint.results = compute([joint.given[rank] for rank in range(self.size)])
            self._simulation.clock.end(joint, 0.0)
        self.wait(joint)
        return joint.results[self.rank]

    def join_collective(
        self,
        key: tuple[Any, ...],
        members: tuple[int, ...],
        place: int,
        what: str,
        tensor: Any,
        act: Act,
    ) -> VirtualHandle:
        """Join the operation of this key as the member at `place`; the first member to join creates it."""
        open_calls = self._simulation.open_calls
        call = open_calls.get(key)
        if call is None:
            call = open_calls[key] = CollectiveCall(self._simulation, members, what)
            if self._simulation.lost:
                call.latest_seconds = self.clock_seconds()
                self._simulation.fail_if_lost(call)
        if call.join(place, tensor, act):
            del open_calls[key]
        return VirtualHandle(self, call, lambda: call.results.pop(place))
