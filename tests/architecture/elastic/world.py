"""Elastic rounds without sockets: the matchmaker, members and their workers, and a network whose order is random.

A message arrives once and in its sender's order, as `rpc` promises; between senders any order is possible. A member
that is killed sends nothing more, and of what it has sent last any part is lost. Its loss is noticed at some later
time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.elastic.client import Averaged, ElasticClient
from laconic.architecture.elastic.exchange import ByParts, MakeExchange
from laconic.architecture.elastic.matchmaker import Matchmaker
from laconic.architecture.elastic.member import Member
from laconic.architecture.elastic.seats import Arrangement
from laconic.errors import WorkerLost
from laconic.worker import ActorMessage

MATCHMAKER = "matchmaker"


@dataclass(eq=False)
class Call:
    """A worker's message to an actor, whose answer its script waits for."""

    address: str
    message: ActorMessage
    writes: bool


@dataclass(eq=False)
class Worker:
    """A worker and its member in one process: a script that waits for calls, and what it has got in each round."""

    rank: int
    address: str
    member: Member
    client: ElasticClient
    script: Generator[Any, Any, None]
    got: list[tuple[int, Tensor, Averaged]] = field(default_factory=list)  # round (below 0: expelled), own, outcome
    ended: bool = False


Script = Callable[["World", "Worker"], Generator[Any, Any, None]]


class World:
    """All processes of a run; `step` lets one thing happen, `settle` everything."""

    def __init__(
        self, arrangement: Arrangement, size: int, script: Script, seed: int = 0, make: MakeExchange = ByParts
    ) -> None:
        self.random = random.Random(seed)
        self.matchmaker = Matchmaker(arrangement, range(size))
        self.script, self.make = script, make
        self.workers: dict[str, Worker] = {}
        self.dead: list[Worker] = []
        self.channels: dict[tuple[str, str], deque[tuple[str, Any]]] = {}  # by source and destination
        self._open: list[tuple[str, str]] = []  # those that are not empty, and some that are
        self.steps = 0
        self.unnoticed: list[str] = []  # members whose loss the matchmaker will notice
        self.inputs: dict[tuple[str, int], Tensor] = {}  # by member and round
        self._held: list[tuple[str, str, int, Call]] = []  # reads without an answer yet
        self.sent_bytes: dict[str, int] = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int, life: int = 0) -> Worker:
        address = f"{rank}.{life}"
        member = Member(address, MATCHMAKER, self.make)
        worker = Worker(rank, address, member, ElasticClient(Call, address, MATCHMAKER), iter(()))  # type: ignore[arg-type]
        worker.script = self.script(self, worker)
        self.workers[address] = worker
        self._advance(worker, None)
        return worker

    # ------------------------------------------------------------------------------------------ what happens

    def step(self) -> bool:
        """Deliver a message, or let a loss be noticed; return whether there was anything to do."""
        while choices := len(self._open) + len(self.unnoticed):
            at = self.random.randrange(choices)
            self.steps += 1
            if at >= len(self._open):
                self._notice(self.unnoticed[at - len(self._open)])
                return True
            key = self._open[at]
            if self.channels[key]:
                self._deliver(*key)
                return True
            self._open[at] = self._open[-1]
            self._open.pop()
        return False

    def settle(self, most: int = 100_000) -> None:
        while self.step():
            most -= 1
            assert most, "messages go round for ever"

    def kill(self, worker: Worker) -> None:
        """End a process: what it has sent and is not delivered is lost from some message on."""
        del self.workers[worker.address]
        self.dead.append(worker)
        for (source, _), queue in self.channels.items():
            if source == worker.address:
                for _ in range(self.random.randint(0, len(queue))):
                    queue.pop()
        for entry in [entry for entry in self._held if entry[1] == worker.address]:
            self._held.remove(entry)
            self._queue(worker.address, entry[0], "answer", WorkerLost(worker.address))
        self.unnoticed.append(worker.address)

    def suspect(self, worker: Worker) -> None:
        """Let the matchmaker take a member for lost that is not."""
        self.unnoticed.append(worker.address)

    def begin(self, script: Script) -> None:
        """Let every worker that has ended run another script."""
        for worker in self.workers.values():
            worker.script, worker.ended = script(self, worker), False
            self._advance(worker, None)

    @property
    def waiting(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if not worker.ended]

    # ------------------------------------------------------------------------------------------ inside

    def _notice(self, address: str) -> None:
        self.unnoticed.remove(address)
        self.matchmaker.lose(_rank(address))
        self._forward(MATCHMAKER, self.matchmaker)

    def _deliver(self, source: str, to: str) -> None:
        what, message = self.channels[source, to].popleft()
        if what == "answer":
            if to in self.workers:
                self._advance(self.workers[to], message)
            return
        sender = _rank(source) if what == "call" else -1
        if to == MATCHMAKER:
            actor: Any = self.matchmaker
            for past in [a for a in self.unnoticed if _rank(a) == sender and a != source]:
                self._notice(past)  # its next life shows that it had died
            if what == "call" and source not in self.workers and source not in self.unnoticed:
                self.unnoticed.append(source)  # a message from the dead, whose silence is noticed once more
        elif to in self.workers:
            actor = self.workers[to].member
        else:  # it is dead, as its caller learns in the end
            if what == "call":
                self._queue(to, source, "answer", WorkerLost(to))
            return
        if what == "call":
            self._answer(source, to, actor, sender, message)
        else:
            actor.write(sender, message)
        self._forward(to, actor)

    def _answer(self, source: str, to: str, actor: Any, sender: int, call: Call) -> None:
        if call.message.kind == "begin":
            self.inputs[to, call.message.number("round")] = call.message.tensors[0]
        if call.writes:
            self._queue(to, source, "answer", actor.write(sender, call.message))
        else:
            self._held.append((source, to, sender, call))

    def _forward(self, address: str, actor: Any) -> None:
        """Send what an actor wants others to receive, and answer reads that it can answer now."""
        outgoing, actor.outgoing = actor.outgoing, []
        for to, message in outgoing:
            self.sent_bytes[address] = self.sent_bytes.get(address, 0) + message.nbytes
            self._queue(address, to, "relay", message)
        for entry in [entry for entry in self._held if entry[1] == address]:
            source, to, sender, call = entry
            answer = actor.read(sender, call.message)
            if answer is not None:
                self._held.remove(entry)
                self._queue(to, source, "answer", answer)

    def _queue(self, source: str, to: str, what: str, message: Any) -> None:
        queue = self.channels.setdefault((source, to), deque())
        if not queue:
            self._open.append((source, to))
        queue.append((what, message))

    def _advance(self, worker: Worker, answer: ActorMessage | WorkerLost | None) -> None:
        try:
            lost = isinstance(answer, WorkerLost)
            call = worker.script.throw(answer) if lost else worker.script.send(answer)
        except StopIteration:
            worker.ended = True
            return
        self._queue(worker.address, call.address, "call", call)


def _rank(address: str) -> int:
    return int(address.split(".")[0])


def rounds(count: int, vectors: Callable[[int, int], Tensor], leaves: bool = True) -> Script:
    """Return a script that ends after so many rounds: after each, a worker goes on from the mean and adds a new vector
    to it."""

    def script(world: World, worker: Worker) -> Generator[Any, Any, None]:
        x = None
        if worker.client.round < 0:
            yield from worker.client.enter()
            x = yield from worker.client.latest()
        while worker.client.round < count:
            fresh = vectors(worker.rank, len(worker.got))
            own = fresh if x is None else x + fresh
            outcome = yield from worker.client.average(own)
            worker.got.append((worker.client.round - 1, own, outcome))
            x = outcome.mean
        if leaves:
            yield from worker.client.leave()

    return script


def normals(numel: int, seed: int = 0) -> Callable[[int, int], Tensor]:
    return lambda rank, at: torch.randn(numel, generator=torch.Generator().manual_seed(seed * 10_007 + rank * 101 + at))


def check(world: World) -> list[tuple[int, tuple[str, ...]]]:
    """Check what must hold of every history, and return all committed groups by round.

    Nobody alive is left waiting. Whoever took a mean over holds the same bits as the others of its group, and these are
    the mean of the vectors of exactly the members that it names. Nobody is in two groups of a round.
    """
    world.settle()
    assert not world.waiting, f"{[worker.address for worker in world.waiting]} wait for ever"
    groups: dict[tuple[int, tuple[str, ...]], Tensor] = {}
    for worker in [*world.workers.values(), *world.dead]:
        for at, own, outcome in worker.got:
            if at < 0:
                assert torch.equal(outcome.mean, own) and outcome.members == (worker.address,)
                continue
            assert worker.address in outcome.members
            expected = plain_mean([world.inputs[member, at] for member in outcome.members])
            assert torch.equal(outcome.mean, groups.setdefault((at, outcome.members), outcome.mean))
            if world.make is ByParts:
                assert torch.equal(outcome.mean, expected)
            else:
                torch.testing.assert_close(outcome.mean, expected, atol=0.2, rtol=0.1)
    for at in {at for at, _ in groups}:
        named = [member for number, members in groups for member in members if number == at]
        assert len(named) == len(set(named)), f"a member is in two groups of round {at}"
    return list(groups)


def plain_mean(vectors: list[Tensor]) -> Tensor:
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total / len(vectors)
