"""The real engine's worker: `torch.distributed` behind the interface of `worker.py`.

gloo carries CPU tensors, NCCL carries CUDA tensors; where gloo is all there is, CUDA tensors go through the host.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from laconic.errors import LaconicError
from laconic.liveness.heartbeat import Heartbeat
from laconic.real.group import RealGroup, RealHandle
from laconic.real.recording import RecordedOperation, Recording
from laconic.real.send_queue import QueuedSend, SendQueue
from laconic.real.server_only_group import ServerOnlyGroup
from laconic.real.staged_group import group_of
from laconic.runtime.ledger import Ledger
from laconic.runtime.shared_memory import map_shared_tensor
from laconic.values.process_place import ProcessPlace
from laconic.values.run_config import RunConfig
from laconic.worker import Actor, ActorMessage, Group, Home, Priority

if TYPE_CHECKING:
    from laconic.rpc.channel import PendingCall
    from laconic.rpc.endpoint import Endpoint


class StepSlowdown(Protocol):
    """What slows a worker down artificially; `next_step` is called at the end of every step."""

    def attach(self, model: nn.Module, optimizer: Optimizer, counts: bool) -> None: ...
    def next_step(self) -> None: ...


class ActorCallHandle:
    """A handle of a message to an actor, whose result is the answer."""

    def __init__(self, call: PendingCall | QueuedSend, worker: RealWorker) -> None:
        self._call, self._worker = call, worker

    def done(self) -> bool:
        return self._call.done()

    def wait(self) -> ActorMessage:
        begin = time.perf_counter()
        try:
            return self._call.wait()
        finally:
            self._worker.waited(begin, None)


class RealWorker:
    """The worker of one process of a `torch.distributed` job.

    Given a `place` (rank and size), it belongs to a run with servers, where there is no process group.
    """

    def __init__(self, heartbeat: Heartbeat | None = None, place: tuple[int, int] | None = None) -> None:
        self.ledger = Ledger()
        self.heartbeat = heartbeat
        self.waited_seconds = 0.0
        self.recording: Recording | None = None
        self.slowdown: StepSlowdown | None = None  # where the worker is artificially slow
        self._messages: list[RealHandle] = []
        self._stream: torch.cuda.Stream | None = None
        self._endpoint: Endpoint | None = None
        self._queue: SendQueue | None = None  # of messages that have a priority
        self.is_server_only = place is not None
        self.size: int = dist.get_world_size() if place is None else place[1]
        self.world: RealGroup | ServerOnlyGroup
        if place is None:
            self.world = group_of(self, dist.group.WORLD)  # type: ignore[arg-type]
        else:
            self.world = ServerOnlyGroup(place[0], tuple(range(place[1])))
        self._groups: dict[tuple[int, ...], RealGroup | ServerOnlyGroup] = {self.world.ranks: self.world}

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def host_size(self) -> int:
        return ProcessPlace.current().local_size or self.size

    def clock_seconds(self) -> float:
        return time.perf_counter()

    @property
    def times_gradients(self) -> bool:
        return self.recording is not None

    def computed(self, part: str, share: float = 1.0, name: str | None = None) -> None:
        """Note the end of a part of the computation; real time has passed by itself."""
        if part == "step" and self.slowdown is not None:
            self.slowdown.next_step()
        if self.recording is not None:
            self.recording.computed(part, name)

    def coded(self, part: str, words: str, elements: Sequence[int]) -> None:
        """Do nothing: encoding and decoding take real time by themselves."""

    def waited(self, begin_seconds: float, operation: RecordedOperation | None) -> None:
        """Note that a handle's `wait`, which began at this time, has returned."""
        now = time.perf_counter()
        self.waited_seconds += now - begin_seconds
        if operation is not None:
            operation.complete()
            operation.waited(begin_seconds, now)

    def group(self, ranks: Sequence[int]) -> RealGroup | ServerOnlyGroup:
        """Return the group of these ranks. It is a collective: all workers ask for the same groups in the same
        order."""
        key = tuple(ranks)
        if list(key) != sorted(set(key)):
            raise LaconicError(f"a group's ranks are given in ascending order, each once, not {key}")
        if key not in self._groups and self.is_server_only:
            self._groups[key] = ServerOnlyGroup(key.index(self.rank) if self.rank in key else -1, key)
        if key not in self._groups:
            process_group = dist.new_group(list(key), timeout=timedelta(minutes=30))
            self._groups[key] = group_of(self, process_group)
        return self._groups[key]

    def hold(self, handle: RealHandle) -> RealHandle:
        """Keep a message's handle until it has completed: if one were dropped half-way, its peer would take the next
        message between the two for it."""
        self._messages = [other for other in self._messages if not other.done()]
        self._messages.append(handle)
        return handle

    def adopt(self, process_group: dist.ProcessGroup) -> RealGroup:
        """Return a process group that the user made (`process_group=`, a mesh's dimension) as a group of this
        worker."""
        return group_of(self, process_group)

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> Tensor:
        return map_shared_tensor(group, numel, dtype)

    def communication_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        if device.type == "cuda" and self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return self._stream

    def catch_up(self) -> None:
        """Do nothing: real time needs no synchronisation."""

    @property
    def endpoint(self) -> Endpoint:
        """The rpc endpoint, opened for the first message; at the end of the process it serves until all workers are
        done."""
        if self._endpoint is None:
            from laconic.rpc.endpoint import Endpoint  # a process that sends no messages to actors needs no sockets

            self._endpoint = Endpoint.of_worker(RunConfig.current(), self.rank, self.ledger)
            atexit.register(self._endpoint.finish, self.size)
        return self._endpoint

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        if home.on == "server" and RunConfig.current().servers:
            return  # a server process hosts it
        if home.number % self.size == self.rank:
            self.endpoint.host(address, build())

    def call(
        self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None
    ) -> ActorCallHandle:
        """Send a message to an actor; with a priority it waits in the send queue."""
        if priority is None:
            return ActorCallHandle(self.endpoint.call(address, message, writes), self)
        if self._queue is None:
            self._queue = SendQueue()
        send = partial(self.endpoint.call, address, message, writes)
        return ActorCallHandle(self._queue.put(send, priority, message.nbytes), self)

    def make_durable(self) -> None:
        """Wait until separate servers hold on disk what this worker has sent them."""
        self.endpoint.make_durable()

    def stepper(self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]) -> None:
        """Do nothing: processes share no optimizer steps."""

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        Variable._execution_engine.queue_callback(finish)

    def explain(self, error: RuntimeError) -> Exception:
        """Return an error that names the lost rank, by the heartbeat's verdict, or the backend's own error if none was
        lost."""
        lost = self.heartbeat.explain(error) if self.heartbeat is not None else None
        return lost if lost is not None else error
