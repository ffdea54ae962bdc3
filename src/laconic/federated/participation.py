"""One client's part in one step of the server: it is sent the model, trains, and reports after some time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from torch import Tensor

from laconic.federated.client_memory import ClientMemory, Memory
from laconic.federated.downlink import Downlink
from laconic.federated.layout import Vectors, moved
from laconic.federated.local import Local, Trainer, Work
from laconic.federated.messages import Message, Wire
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server

_OWN = "rule/"


@dataclass(frozen=True, eq=False)
class Flight:
    """A report on its way, or a client that will not report.

    - `client`, `version`: whose it is, and the model it started from.
    - `begins`, `arrives`: when it was sent the model, and when its report arrives; infinity where it never does.
    - `training`: how many seconds it trains.
    - `message`: what it says.
    - `memory`: what the client keeps if the report is taken.
    - `wire`: how it is encoded.
    - `received`: what the client was sent.
    - `edge`: the aggregator to which it reports.
    """

    client: int
    version: int
    begins: float
    arrives: float
    message: Message | None
    memory: Memory
    training: float = 0.0
    wire: Wire | None = None
    received: Vectors = field(default_factory=dict)
    edge: int = 0

    @property
    def lost(self) -> bool:
        return self.message is None


@dataclass(frozen=True, eq=False)
class Collected:
    """What the server has of a step's reports.

    - `reports`: what it has learned; nothing, where the step is lost.
    - `seconds`: how long that took beside the reports' own ways.
    - `up_bytes`, `down_bytes`: what each client has sent and received beside its report.
    """

    reports: Sequence[Report]
    seconds: float = 0.0
    up_bytes: Mapping[int, int] = field(default_factory=dict)
    down_bytes: Mapping[int, int] = field(default_factory=dict)


class Collects(Protocol):
    """How reports are collected: one by one, or as a sum."""

    def collect(
        self, wire: Wire, population: Population, taken: Sequence[Flight], flights: Sequence[Flight]
    ) -> Collected:
        """Return what the server learns from the reports that are taken, of all clients that were selected."""
        ...


def report_of(flight: Flight, population: Population, offered: bool = False) -> Report:
    """Return what one client's report says; where it is only offered, its numbers alone."""
    assert flight.message is not None and flight.wire is not None
    return Report(
        flight.client,
        flight.version,
        len(population.shards[flight.client]),
        {} if offered else flight.wire.decode(flight.message, flight.client, flight.version),
        flight.message.numbers,
        flight.arrives - flight.begins,
        flight.training,
        flight.arrives,
        {} if offered else flight.wire.masks(flight.message, flight.client),
        received=flight.received,
        edge=flight.edge,
    )


def client_draw(seed: int, version: int, client: int) -> np.random.Generator:
    """Return the draws of a client's training: the order of its samples."""
    return np.random.default_rng([seed, 0xC11E, version, client])


def train_client(
    rule: Rule,
    trainer: Trainer,
    wire: Wire,
    client: int,
    samples: np.ndarray,
    work: Work,
    received: Vectors,
    version: int,
    memory: Memory,
) -> tuple[Message, Memory]:
    """Let a client do its part with what it has received: return its message, and what it keeps if that is taken.

    This is all that a client does, wherever it runs. Its random draws depend on the seed, the version of the model and
    its number. It trains on the device of the model; what it receives, sends and keeps is in the memory of the
    processor.
    """
    draw = client_draw(wire.seed, version, client)
    own = {name.removeprefix(_OWN): x.to(trainer.device) for name, x in memory.items() if name.startswith(_OWN)}
    local = Local(trainer, client, samples, work, draw, version)
    sent: Sent = rule.train(local, moved(received, trainer.device), own)
    own = moved(own, "cpu")
    vectors, masks, raw = (moved(part, "cpu") for part in (sent.vectors, sent.masks, sent.raw))
    message, kept = wire.encode(vectors, sent.numbers, client, version, memory, masks, raw)
    rule.remember(own, partial(wire.decode, message, client, version))
    return message, {**{f"{_OWN}{name}": value for name, value in own.items()}, **kept}


class Participants:
    """The clients of a virtual run: who has sent and received how much, and what each keeps."""

    def __init__(
        self,
        rule: Rule,
        trainer: Trainer,
        population: Population,
        wire: Wire,
        downlink: Downlink,
        memory: ClientMemory,
        rate: float,
    ) -> None:
        self.population = population
        self._rule, self._trainer, self._wire, self._downlink = rule, trainer, wire, downlink
        self._memory, self._rate = memory, rate
        self.up_bytes, self.down_bytes = (np.zeros(len(population), dtype=np.int64) for _ in range(2))

    def publish(self, server: Server) -> dict[str, Tensor]:
        """Return what clients see of the server's vectors: nothing, where each is sent its own."""
        return {} if self._rule.personal else self._downlink.publish(self._rule.down(server), server.version)

    def start(self, client: int, server: Server, received: Vectors, now: float, attempt: int) -> Flight:
        """Send a client the model and let it train: it reports, unless it vanishes or can be reached no longer."""
        population = self.population
        if self._rule.personal:
            own = self._rule.down_to(server, client)
            received, fetched = self._downlink.send(own.vectors, own.raw, server.version)
        else:
            received = self._rule.share(server, client, received)
            fetched = self._downlink.fetch(client, received)
        self.down_bytes[client] += fetched
        if population.is_lost(client, attempt, self._wire.seed):
            return Flight(client, server.version, now, np.inf, None, {})
        samples = population.shards[client]
        work = self._rule.work(server, client, population, self._rate)
        wire = replace(self._wire, compressor=self._rule.compressor(server, client, self._wire.compressor))
        message, memory = train_client(
            self._rule,
            self._trainer,
            wire,
            client,
            samples,
            work,
            received,
            server.version,
            self._memory.load(client),
        )
        training = population.train_seconds(client, work.samples_used(len(samples)), work.steps_made(len(samples)))
        sent = message.control_bytes + (0 if self._rule.asks_first else message.nbytes)
        arrives = (
            now
            + population.send_seconds(client, fetched, down=True)
            + training
            + population.send_seconds(client, sent, down=False)
        )
        flight = Flight(client, server.version, now, arrives, message, memory, training, wire, received)
        return flight if self._rule.asks_first else self._sent(flight)

    def begin(self, clients: int) -> None:
        """Begin a round of so many clients."""
        self._wire = self._wire.among(clients)

    def collect(
        self, how: Collects, taken: Sequence[Flight], flights: Sequence[Flight]
    ) -> tuple[Sequence[Report], float]:
        """Return what the server learns from the reports that are taken, and how long that takes."""
        found = how.collect(self._wire, self.population, taken, flights)
        for counted, more in ((self.up_bytes, found.up_bytes), (self.down_bytes, found.down_bytes)):
            for client, nbytes in more.items():
                counted[client] += nbytes
        return found.reports, found.seconds

    def keep(self, flight: Flight) -> None:
        """Let a client keep what follows from its report, which is taken."""
        self._memory.save(flight.client, flight.memory)

    def admitted(self, server: Server, flights: Sequence[Flight], until: float) -> list[Flight]:
        """Return those who send their vectors once all have offered them, as the rule decides, and those who are lost.

        - `until`: when offers are no longer waited for.
        """
        offers = [flight for flight in flights if flight.arrives <= until and not flight.lost]
        at = max((flight.arrives for flight in offers), default=0.0)
        chosen = set(
            self._rule.admitted(server, [report_of(flight, self.population, offered=True) for flight in offers])
        )
        sending = []
        for flight in offers:
            if flight.client in chosen and flight.message is not None:
                seconds = self.population.send_seconds(flight.client, flight.message.nbytes, down=False)
                sending.append(self._sent(replace(flight, arrives=at + seconds)))
        return [*sending, *(flight for flight in flights if flight.lost)]

    def aggregated(self, flights: Sequence[Flight], edges: Mapping[int, int]) -> list[Flight]:
        """Return reports on their way to these aggregators, by client; that of a client without one is lost."""
        return [
            replace(flight, edge=edges[flight.client])
            if flight.client in edges
            else Flight(flight.client, flight.version, flight.begins, np.inf, None, {})
            for flight in flights
        ]

    def _sent(self, flight: Flight) -> Flight:
        """Return a report on its way, or a lost one where its client can be reached no longer when it arrives."""
        assert flight.message is not None
        if self.population.availability.until(np.array([flight.client]), flight.begins)[0] < flight.arrives:
            return Flight(flight.client, flight.version, flight.begins, np.inf, None, {})
        self.up_bytes[flight.client] += flight.message.nbytes
        return flight
