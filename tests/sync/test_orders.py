"""The server's whole protocol under random orders of its messages: both halves of a rule, real inboxes and outboxes, no
clock.

Messages overtake each other, are lost and sent twice; the server is killed and comes back from a snapshot. Updates are
tagged (one number per worker and step), so that the values show which of them were applied, and how often.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from laconic.architecture.server.actor import Shard
from laconic.architecture.server.client import ServerClient
from laconic.architecture.server.replicas import Replicas
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import Store
from laconic.compression.none import Identity
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.sync.asp import ASP
from laconic.sync.server import ServerSync
from laconic.sync.ssp import SSP
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Priority

ORDERS = 2_500
"""Per rule."""


class Handle:
    """What a client waits for."""

    message: ActorMessage | None = None

    def done(self) -> bool:
        return self.message is not None

    def wait(self) -> ActorMessage:
        assert self.message is not None
        return self.message


class Client:
    """One worker: the rule's own half, step after step, over an outbox whose messages the world delivers in any
    order."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size
        self.outbox = Outbox(rank, life=1)
        self.handles: dict[tuple[bool, int], Handle] = {}
        self.parameters = [torch.zeros(world.size, world.steps, dtype=torch.float64)]
        self.group, self.step = SimpleNamespace(size=world.size), 0
        self.optimizer = world.optimizer
        shards = [Replicas(self, ["s"])]  # type: ignore[arg-type]
        self.server = ServerClient(self, [shards], 0, world.ranges, world.specs, Identity(), world.meeting, world.size)  # type: ignore[arg-type]
        self.state = world.rule.init(self)
        self._waits: list[Any] | None = None
        self._talk: Any = None
        self._go_on()

    # ------------------------------------------------------------------------------------------ as a section

    @property
    def gradients(self) -> list[Tensor]:
        """Of which, at a rate of 1 and 1/N of each, the server adds 1 to this step's own number."""
        tagged = torch.zeros_like(self.parameters[0])
        tagged[self.rank, self.step] = -self.size
        return [tagged]

    def apply(self) -> None:
        self.parameters[0] -= self.gradients[0]

    def note(self, **numbers: float) -> None: ...

    # ------------------------------------------------------------------------------------------ as a worker

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> Handle:
        envelope = self.outbox.add(message, writes)
        handle = self.handles[writes, envelope.number] = Handle()
        self.world.in_flight.append(envelope)
        return handle

    def receive(self, answer: Answer) -> None:
        message, again = self.outbox.receive(answer)
        if message is not None:
            self.handles[answer.writes, answer.number].message = message
        self.world.in_flight += again
        self._go_on()

    # ------------------------------------------------------------------------------------------ its steps

    @property
    def finished(self) -> bool:
        return self.step == self.world.steps

    def _resume(self, results: list[Any] | None) -> None:
        try:
            self._waits = self._talk.send(results)
        except StopIteration as end:
            self.state, self._waits = end.value, None
            self.step += 1
            self.world.entered(self)

    def _go_on(self) -> None:
        while not self.finished and (self._waits is None or all(handle.done() for handle in self._waits)):
            if self._waits is None:
                self._talk = self.world.rule.stepping(self, self.state)
                self._resume(None)
            else:
                self._resume([handle.wait() for handle in self._waits])


class World:
    """A server, its clients, and everything in flight between them, in the hands of chance."""

    def __init__(self, rule: Any, size: int, steps: int, seed: int) -> None:
        self.rule, self.size, self.steps = rule, size, steps
        self.random = random.Random(seed)
        self.in_flight: list[Envelope | Answer] = []
        self.ticked = [0] * size  # the most that any life of the server has seen of each worker's clock
        values = torch.zeros(size, steps, dtype=torch.float64)
        self.optimizer = torch.optim.SGD([values], lr=1.0)
        self.specs = [TensorSpec("tags", tuple(values.shape), values.dtype)]
        self.ranges = [Range(0, 0, values.numel(), 0)]
        self._values = values
        self.inbox = Inbox(self._shard())
        self.snapshot = self.inbox.state()
        self.kills = 1
        self.clients: list[Client] = []
        for rank in range(size):
            self.clients.append(Client(self, rank))

    def meeting(self, rank: int, name: str, step: int) -> Any:
        return None

    def _shard(self) -> Shard:
        store = Store(self.ranges, self.specs, [self._values], self.optimizer, self.size)
        store.initialized = True
        return Shard(store, self.rule, Identity(), self.meeting, "")

    def run(self) -> None:
        """All steps of all clients, and a last look at the values, which comes after all of one's own updates."""
        self._until_nobody_waits()
        self.kills = 0
        for client in self.clients:
            client.call("s", ActorMessage("peek"), writes=False)
        self._until_nobody_waits()

    def _until_nobody_waits(self) -> None:
        chance, silences = self.random.random, 0
        while True:
            if not self.in_flight:
                if all(client.finished and not client.outbox.waiting for client in self.clients):
                    return
                silences += 1
                assert silences < 1000, "somebody waits for what nobody says"
                for client in self.clients:
                    self.in_flight += self._after_silence(client)
                continue
            place = int(chance() * len(self.in_flight))
            message, what = self.in_flight[place], chance()
            if what >= 0.08:  # else it arrives, and is there once more
                self.in_flight[place] = self.in_flight[-1]
                self.in_flight.pop()
            if what < 0.88:  # else it is lost
                self._deliver(message)
            if what > 0.99 and self.kills:
                self._kill()

    def _after_silence(self, client: Client) -> list[Envelope]:
        """The worker repeats what was not answered, or its connection to the server breaks and is opened anew."""
        if self.random.random() < 0.5:
            return client.outbox.overdue()
        return client.outbox.resume(self.inbox.epoch, *(self.inbox.progress(client.rank, 1) or (0, 0)))

    def _deliver(self, message: Envelope | Answer) -> None:
        if isinstance(message, Answer):
            self.clients[message.to].receive(message)
            return
        self.in_flight += self.inbox.receive(message)
        if message.writes:
            self.ticked[message.sender] = max(self.ticked[message.sender], self.store.clocks[message.sender])
            if self.random.random() < 0.1:
                self.snapshot = self.inbox.state()
                self.inbox.saved(self.snapshot)

    def _kill(self) -> None:
        """What came after the snapshot is forgotten; what is in flight, either way, may still arrive."""
        self.kills -= 1
        self.inbox = Inbox(self._shard(), self.inbox.epoch + 1)
        self.inbox.restore(self.snapshot)

    @property
    def store(self) -> Store:
        store: Store = self.inbox.actor.store  # type: ignore[attr-defined]
        return store

    def entered(self, client: Client) -> None:
        """A worker begins the step of its clock: nobody may be too far behind, and it holds what it must."""
        held, clock = client.parameters[0].tolist(), client.step
        assert held[client.rank][:clock] == [1] * clock, "it does not see its own updates"
        assert {tag for row in held for tag in row} <= {0, 1}, "an update was applied twice"
        if isinstance(self.rule, SSP):
            must = clock - self.rule.staleness
            others = [ticked for rank, ticked in enumerate(self.ticked) if rank != client.rank]
            assert min(others) >= must, "it is let in too early"
            assert all(row[: max(must, 0)] == [1] * max(must, 0) for row in held), "it does not see what it must"


@pytest.mark.long
@pytest.mark.parametrize("rule", [ASP(), SSP(0), SSP(1), SSP(2)], ids=["asp", "ssp(0)", "ssp(1)", "ssp(2)"])
def test_every_update_once_and_nobody_too_far_ahead(rule: ServerSync) -> None:
    for seed in range(ORDERS):
        ahead = rule.staleness if isinstance(rule, SSP) else 0
        size, steps = 3 if seed % 4 else 4, max(2, ahead + 1)  # enough for the bound to bite
        world = World(rule, size, steps, seed)
        world.run()
        assert torch.equal(world.store.values[0].detach(), torch.ones(world.size, world.steps, dtype=torch.float64))
