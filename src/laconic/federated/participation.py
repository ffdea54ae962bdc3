"""One client's part in one step of the server: it is sent the model, trains, and reports after some time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from laconic.federated.client_memory import ClientMemory, Memory
from laconic.federated.downlink import Downlink
from laconic.federated.layout import Vectors
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
    """

    client: int
    version: int
    begins: float
    arrives: float
    message: Message | None
    memory: Memory
    training: float = 0.0

    @property
    def lost(self) -> bool:
        return self.message is None


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
    its number.
    """
    draw = np.random.default_rng([wire.seed, 0xC11E, version, client])
    own = {name.removeprefix(_OWN): value for name, value in memory.items() if name.startswith(_OWN)}
    sent: Sent = rule.train(Local(trainer, client, samples, work, draw), received, own)
    message, kept = wire.encode(sent.vectors, sent.numbers, client, version, memory)
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
        """Return what clients see of the server's vectors."""
        return self._downlink.publish(self._rule.down(server), server.version)

    def start(self, client: int, server: Server, received: Vectors, now: float, attempt: int) -> Flight:
        """Send a client the model and let it train: it reports, unless it vanishes or can be reached no longer."""
        population = self.population
        fetched = self._downlink.fetch(client)
        self.down_bytes[client] += fetched
        if population.is_lost(client, attempt, self._wire.seed):
            return Flight(client, server.version, now, np.inf, None, {})
        samples = population.shards[client]
        work = self._rule.work(server, client, population, self._rate)
        message, memory = train_client(
            self._rule,
            self._trainer,
            self._wire,
            client,
            samples,
            work,
            received,
            server.version,
            self._memory.load(client),
        )
        training = population.train_seconds(client, work.samples_used(len(samples)))
        arrives = (
            now
            + population.send_seconds(client, fetched, down=True)
            + training
            + population.send_seconds(client, message.nbytes + message.control_bytes, down=False)
        )
        if population.availability.until(np.array([client]), now)[0] < arrives:
            return Flight(client, server.version, now, np.inf, None, {})
        self.up_bytes[client] += message.nbytes
        return Flight(client, server.version, now, arrives, message, memory, training)

    def take(self, flight: Flight) -> Report:
        """Return what a report says, and let its client keep what follows from it."""
        assert flight.message is not None
        self._memory.save(flight.client, flight.memory)
        vectors = self._wire.decode(flight.message, flight.client, flight.version)
        samples = len(self.population.shards[flight.client])
        return Report(
            flight.client,
            flight.version,
            samples,
            vectors,
            flight.message.numbers,
            flight.arrives - flight.begins,
            flight.training,
        )
