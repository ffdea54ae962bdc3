"""Parameter servers in this process, without a network: writes are applied when they are sent, reads answered when
they are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from laconic.architecture.server.actor import ServerRule, Shard
from laconic.architecture.server.client import ServerClient
from laconic.architecture.server.replicas import Replicas
from laconic.architecture.server.sharding import Range, even
from laconic.architecture.server.store import Store
from laconic.compression.base import Compressor
from laconic.compression.none import Identity
from laconic.errors import WorkerLost
from laconic.runtime.meeting import Meeting
from laconic.sync.asp import ASP
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Communication, Priority

DIGEST = "same"
SPECS = (TensorSpec("w", (3, 4), torch.float32), TensorSpec("b", (5,), torch.float32))


def meeting(rank: int, step: int, name: str) -> Meeting:
    return Meeting(rank, 1, step, name)


def store_of(
    ranges: Sequence[Range], size: int = 2, rate: float = 1.0, group: int = 0, members: Sequence[int] | None = None
) -> Store:
    """Zeros, on which plain SGD steps."""
    parameters = [torch.zeros(spec.shape) for spec in SPECS]
    return Store(ranges, SPECS, parameters, torch.optim.SGD(parameters, lr=rate), size, group, members)


def shard_of(
    rule: ServerRule | None = None, size: int = 2, down: Compressor | None = None, planted: float | None = 0.0
) -> Shard:
    """One shard of everything, planted with a constant."""
    made = Shard(store_of(even(SPECS, 1), size), rule or ASP(), Identity(), meeting, DIGEST, down=down)
    if planted is not None:
        made.write(0, ActorMessage("plant", {}, (torch.full((17,), planted),)))
    return made


@dataclass(eq=False)
class Lines:
    """One worker's connections to all actors."""

    rank: int
    servers: Servers

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> Any:
        return Sent(self, address, message, writes)


class Sent:
    """A message in flight: to an actor that is lost, it fails."""

    def __init__(self, lines: Lines, address: str, message: ActorMessage, writes: bool) -> None:
        self._lines, self._address, self._message = lines, address, message
        actors, lost = lines.servers.actors, lines.servers.lost
        self._answer = actors[address].write(lines.rank, message) if writes and address not in lost else None

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        servers = self._lines.servers
        if self._address in servers.lost:
            raise WorkerLost(f"{self._address} is gone")
        answer = self._answer or servers.actors[self._address].read(self._lines.rank, self._message)
        assert answer is not None, f"{self._message.kind} would wait for ever"
        return answer


@dataclass(eq=False)
class Servers:
    """All shards of all groups, and which of their addresses are lost."""

    actors: dict[str, Shard] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, shards: int, size: int, groups: Sequence[Sequence[int]] | None = None) -> Servers:
        made, ranges = cls(), even(SPECS, shards)
        for g, members in enumerate(groups or [range(size)]):
            for k in range(shards):
                store = store_of([r for r in ranges if r.shard == k], size, group=g, members=members)
                made.actors[f"{g}.{k}"] = Shard(store, ASP(), Identity(), meeting, DIGEST)
        return made

    def client(self, rank: int, size: int, group: int = 0) -> ServerClient:
        lines: Any = Lines(rank, self)
        shards = sorted({int(address.split(".")[1]) for address in self.actors})
        groups = sorted({int(address.split(".")[0]) for address in self.actors})
        placed = [[Replicas(lines, [f"{g}.{k}"]) for k in shards] for g in groups]
        ranges = even(SPECS, len(shards))
        return ServerClient(lines, placed, group, ranges, SPECS, Identity(), meeting, size)


def together(talks: Sequence[Communication[Any]]) -> list[Any]:
    """Drive the communications of several workers, each to its next wait before any is answered."""
    results: list[Any] = [None] * len(talks)
    answers: dict[int, Any] = dict.fromkeys(range(len(talks)))
    while answers:
        waiting = {}
        for i, answer in answers.items():
            try:
                waiting[i] = talks[i].send(answer)
            except StopIteration as end:
                results[i] = end.value
        answers = {i: [h.wait() for h in on] if isinstance(on, list) else on.wait() for i, on in waiting.items()}
    return results
