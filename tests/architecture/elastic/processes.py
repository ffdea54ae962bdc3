"""Members as real processes, over `rpc`, that kill themselves with SIGKILL at a message of their choice."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.elastic.client import ElasticClient
from laconic.architecture.elastic.exchange import ByParts, CodedRing
from laconic.architecture.elastic.matchmaker import Matchmaker
from laconic.architecture.elastic.member import Member
from laconic.architecture.elastic.seats import Grid
from laconic.compression.bucket_means import BucketMeans
from laconic.rpc.directory import FileDirectory
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.keys import Keys
from laconic.worker import ActorMessage, Communication
from tests.architecture.elastic.world import normals

HEARTBEAT_SECONDS = 2.0
PATIENCE_SECONDS = 90.0  # for all rounds of a trial, on cores that have other work
EXCHANGES = {"parts": ByParts, "ring": CodedRing.around(BucketMeans())}


@dataclass(frozen=True)
class Death:
    """At which of its actor's messages a process dies: before it handles that one, or after it has handed over so many
    of the messages that it sends then. Message 0 is before it has entered."""

    message: int
    handed_over: int | None = None


class LastWords(list[Any]):
    """Messages of which a process hands over some, and dies."""

    def __init__(self, messages: list[Any], count: int) -> None:
        super().__init__(messages)
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        yield from list.__getitem__(self, slice(self._count))
        _die()


class MortalMember(Member):
    """A member that reports the vectors it takes part with, and dies at a message."""

    death: Death | None = None
    received = 0
    report: Any = None

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.kind == "begin":
            self.report(("own", message.number("round"), message.tensors[0].numpy().copy()))
        self.received += 1
        dies = self.death is not None and self.received == self.death.message
        if dies and (self.death is None or self.death.handed_over is None):
            _die()
        answer = super().write(sender, message)
        if dies and self.death is not None:
            if not self.outgoing:
                _die()
            self.outgoing = LastWords(self.outgoing, self.death.handed_over or 0)
        return answer


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def endpoint(folder: Path, rank: int) -> Endpoint:
    directory = FileDirectory(folder / "directory")
    return Endpoint(Keys.read(folder / "keys"), directory, rank, heartbeat_seconds=HEARTBEAT_SECONDS)


def work(folder: Path, rank: int, matchmaker: str, exchange: str, count: int, death: Death | None, pipe: Any) -> None:
    """Take part in so many rounds, and report every outcome."""
    torch.set_num_threads(1)
    lock = threading.Lock()

    def report(what: Any) -> None:
        with lock:
            pipe.send(what)

    if death is not None and death.message == 0:
        _die()
    here = endpoint(folder, rank)
    member = MortalMember(f"member-{rank}", matchmaker, EXCHANGES[exchange])  # type: ignore[arg-type]
    member.death, member.report = death, report
    here.host(f"member-{rank}", member)
    client = ElasticClient(here.call, f"member-{rank}", matchmaker)
    x = torch.zeros(37)
    while client.round < count:
        outcome = wait_for(client.average(x + normals(37)(rank, client.round + 1)))
        x = outcome.mean
        report(("got", client.round - 1, outcome.members, x.numpy().copy()))
    wait_for(client.leave())
    report(("ended",))
    pipe.recv()  # others may still need what this process serves
    here.close()


def wait_for(communication: Communication[Any]) -> Any:
    answer: Any = None
    while True:
        try:
            answer = communication.send(answer).wait()
        except StopIteration as end:
            return end.value


@dataclass
class Told:
    """What one process has reported, and how it ended."""

    own: dict[int, Tensor] = field(default_factory=dict)
    got: dict[int, tuple[tuple[str, ...], Tensor]] = field(default_factory=dict)
    ended: bool = False
    killed: bool = False


class Trials:
    """Runs of elastic rounds among processes, which share a matchmaker's process and what they have imported."""

    def __init__(self, folder: Path) -> None:
        Keys.make().write(folder / "keys")
        self._folder = folder
        self._endpoint = endpoint(folder, -1)
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._count = 0

    def run(self, deaths: list[Death | None], count: int, exchange: str = "parts") -> dict[str, Told]:
        """Let as many processes as there are entries go through so many rounds, and return what they reported."""
        ranks = [100 * self._count + place for place in range(len(deaths))]
        matchmaker, self._count = f"matchmaker-{self._count}", self._count + 1
        self._endpoint.host(matchmaker, Matchmaker(Grid(1), ranks))
        told = {f"member-{rank}": Told() for rank in ranks}
        processes, pipes = [], {}
        for rank, death in zip(ranks, deaths, strict=True):
            here, there = self._context.Pipe()
            arguments = (self._folder, rank, matchmaker, exchange, count, death, there)
            process = self._context.Process(target=work, args=arguments, daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes[here] = f"member-{rank}"
        deadline, reading = time.monotonic() + PATIENCE_SECONDS, dict(pipes)
        try:
            while reading:
                ready = mp.connection.wait(list(reading), max(0.0, deadline - time.monotonic()))
                assert ready, f"{sorted(reading.values())} hang, with {told}"
                for pipe in ready:
                    if not self._read(pipe, told[reading[pipe]]):  # type: ignore[arg-type]
                        name = reading.pop(pipe)  # type: ignore[arg-type]
                        if not told[name].ended:  # as a launcher does that sees a process end
                            told[name].killed = True
                            self._report_unknown(matchmaker, name, deaths[int(name.split("-")[1]) % 100])
        finally:
            for pipe, name in pipes.items():
                if told[name].ended:
                    pipe.send("end")
            for process in processes:
                process.join(PATIENCE_SECONDS)
                process.kill()
        return told

    def _report_unknown(self, matchmaker: str, name: str, death: Death | None) -> None:
        """Report a process that ended before the matchmaker had seen it; others are found by their silence."""
        if death is not None and death.message == 0:
            gone = ActorMessage("gone", {"worker": int(name.split("-")[1])})
            self._endpoint.call(matchmaker, gone, writes=True).wait()

    @staticmethod
    def _read(pipe: Any, told: Told) -> bool:
        """Take in a report; return whether there may be more."""
        try:
            what, *rest = pipe.recv()
        except (EOFError, ConnectionResetError):
            return False
        if what == "own":
            told.own[rest[0]] = torch.from_numpy(rest[1])
        elif what == "got" and rest[0] >= 0:
            told.got[rest[0]] = (rest[1], torch.from_numpy(rest[2]))
        elif what == "ended":
            told.ended = True
        return what != "ended"

    def close(self) -> None:
        self._endpoint.close()
