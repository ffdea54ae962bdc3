"""A coordinator and its client processes inside one process: messages are calls, so that any order can be tried."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from laconic.federated.client_memory import InMemory, Memory
from laconic.federated.federation import Federation
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.partition import Integers
from laconic.federated.processes.client import ClientProcess
from laconic.federated.processes.coordinator import Coordinator
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Classification
from laconic.rpc.snapshots import read, write
from laconic.worker import ActorMessage

HERE = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else Path(__file__)


def halves() -> Classification:
    """Return a small task: which side of a plane a point is on."""
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(1))
    y = (x @ torch.arange(1.0, 7.0) > 0).long()
    return Classification(lambda: torch.nn.Linear(6, 2), x[:180], y[:180], x[180:], y[180:])


def wide() -> Classification:
    """Return a task whose model has 20,000 parameters."""
    x = torch.randn(240, 100, generator=torch.Generator().manual_seed(2))
    y = (x.sum(1) > 0).long()
    return Classification(_wide_model, x[:180], y[:180], x[180:], y[180:])


def _wide_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(100, 194), torch.nn.ReLU(), torch.nn.Linear(194, 2))


@dataclass(frozen=True)
class Fragile(Rule):
    """FedAvg whose server is killed at its third step, when all reports have come, and a client that is killed at its
    work in the second round: each once, and only where FRAGILE names a folder."""

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        if local.client % 2:
            die_once("client", Path(_marks(), "round1").exists())
        return super().train(local, received, memory)

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        Path(_marks(), f"round{server.version + 1}").touch()
        die_once("server", server.version == 2)
        return super().aggregate(server, reports)


def _marks() -> str:
    return os.environ["FRAGILE"]


def die_once(who: str, now: bool) -> None:
    """Kill this process, unless somebody of this name has died already."""
    mark = Path(_marks(), f"{who} died")
    if now and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Recorded(Rule):
    """FedAvg among the clients that took part in another run."""

    took_part: tuple[tuple[int, ...], ...] = ()

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        return np.array(self.took_part[server.version])


def federation(steps: int, seed: int, clients: int = 6, task: str = "halves") -> Federation:
    """Return clients that learn the small task."""
    return Federation(task=f"{HERE}:{task}", clients=clients, steps=steps, rate=0.3, seed=seed)


def coordinator(setting: Federation, sentence: str, processes: int) -> Coordinator:
    """Return the server of a run."""
    strategy = FederatedStrategy.parse(sentence)
    kept = {"steps": setting.steps, "rate": setting.rate, "seed": setting.seed, "processes": processes}
    return Coordinator(setting.learned, setting.population, strategy, **kept)  # type: ignore[arg-type]


class Paused(Exception):
    """A question has no answer yet."""


@dataclass(eq=False)
class Answered:
    """A call that has its answer."""

    message: ActorMessage

    def wait(self) -> ActorMessage:
        return self.message


@dataclass(eq=False)
class Line:
    """What an `Endpoint` is for a client process, without a network: messages are calls of the actor.

    - `meddle`: sees every write before it is sent, and may send others.
    """

    server: Callable[[], Coordinator]
    number: int
    meddle: Callable[[ActorMessage], None] = field(default=lambda message: None)
    sent_bytes: int = 0

    def call(self, address: str, message: ActorMessage, writes: bool) -> Answered:
        self.meddle(message)
        actor = self.server()
        answer = actor.write(self.number, message) if writes else actor.read(self.number, message)
        if answer is None:
            raise Paused
        return Answered(answer)

    def make_durable(self) -> None:
        pass


class World:
    """A server and processes that take turns; the server can be put back to what it last wrote."""

    def __init__(self, setting: Federation, sentence: str, processes: int) -> None:
        self.setting, self.sentence = setting, sentence
        self.server = coordinator(setting, sentence, processes)
        self.lines = [Line(lambda: self.server, number) for number in range(processes)]
        self.memories = [(InMemory(), InMemory()) for _ in range(processes)]
        self.processes = [self.started(number) for number in range(processes)]

    def started(self, number: int) -> ClientProcess:
        """Return a process as it is after its start, with what it had on disk."""
        strategy = FederatedStrategy.parse(self.sentence)
        parts = (self.setting.learned, self.setting.population, strategy, self.setting.seed)
        return ClientProcess(self.lines[number], *parts, *self.memories[number])  # type: ignore[arg-type]

    def turn(self, number: int) -> None:
        """Let a process work until it has to wait."""
        with suppress(Paused):
            self.processes[number].serve()

    def run(self, order: Callable[[int], int] = lambda turn: turn) -> None:
        """Let processes take turns until the run is over."""
        for turn in range(10_000):
            if self.server.is_done:
                return
            self.turn(order(turn) % len(self.processes))
        raise AssertionError("the run does not end")

    def restarted(self, path: Path) -> Coordinator:
        """Return a server that begins from a file."""
        server = coordinator(self.setting, self.sentence, len(self.processes))
        server.restore(read(path))
        return server

    def snapshot(self, path: Path) -> Path:
        """Write the server's state as a file."""
        write(path, self.server.state())
        return path
