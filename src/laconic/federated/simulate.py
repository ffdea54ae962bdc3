"""Federated learning on virtual clients: those that are selected really train, and a virtual clock says when each
reports."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.client_memory import ClientMemory, InMemory
from laconic.federated.downlink import Downlink
from laconic.federated.local import Trainer
from laconic.federated.messages import Wire
from laconic.federated.outcome import FederatedOutcome, Step
from laconic.federated.participation import Flight, Participants
from laconic.federated.population import Population
from laconic.federated.rule import Server
from laconic.federated.selection import draw_of_round, draw_of_start
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task


def simulate(
    task: Task,
    population: Population,
    strategy: str | FederatedStrategy,
    steps: int,
    *,
    rate: float,
    seed: int = 0,
    evaluate_every: int = 0,
    client_memory: ClientMemory | None = None,
    progress: Callable[[Step], None] | None = None,
    recorded: bool = False,
) -> FederatedOutcome:
    """Train a model with a population of clients, and return what came of it.

    - `task`: what is learned.
    - `strategy`: a federated sentence, such as `fedavg(clients=10, epochs=5) / topk(0.01)+ef / server`.
    - `steps`: how many steps the server tries to make: rounds, where it waits for all of a round.
    - `rate`: the clients' learning rate.
    - `seed`: of everything that is drawn.
    - `evaluate_every`: after how many steps the model is judged; 0 for never.
    - `client_memory`: where clients keep what they remember; in this process, if it is not given.
    - `progress`: is called after every step.
    - `recorded`: whether gradients are recorded as CUDA graphs, one for each size of a batch that comes often, which
      saves the launches of kernels: for a model on a GPU whose loss asks for no value on the way.

    Clients train on the device on which the task builds its model; the server and all messages are in the memory of the
    processor.
    """
    run = _Run(task, population, strategy, rate, seed, client_memory or InMemory(), recorded)
    taken: list[Step] = []
    for number, (step, server) in enumerate(run.steps(steps), 1):
        if evaluate_every and number % evaluate_every == 0:
            step = run.judged(step, server)
        taken.append(step)
        if progress is not None:
            progress(step)
    return FederatedOutcome(
        run.rule.model(run.server), run.server, taken, run.participants.up_bytes, run.participants.down_bytes
    )


class _Run:
    """A run on the virtual clock."""

    def __init__(
        self,
        task: Task,
        population: Population,
        strategy: str | FederatedStrategy,
        rate: float,
        seed: int,
        memory: ClientMemory,
        recorded: bool,
    ) -> None:
        self.strategy = FederatedStrategy.parse(strategy) if isinstance(strategy, str) else strategy
        self.rule, self.structure = self.strategy.rule, self.strategy.structure
        self.population, self.seed, self.now = population, seed, 0.0
        self.trainer = Trainer(task, seed, recorded)
        layout = self.trainer.layout
        setting = self.strategy.setting(layout)
        self.server = self.rule.begin(self.trainer.start.cpu(), population, setting)
        self.participants = Participants(
            self.rule,
            self.trainer,
            population,
            self.structure.wire(setting.up, layout, seed, population),
            Downlink(Wire(setting.down, layout, seed), len(population)),
            memory,
            rate,
        )

    def steps(self, count: int) -> Iterator[tuple[Step, Server]]:
        """Make so many steps, one after the other."""
        if self.rule.clustered:
            return self._in_clusters(count)
        return self._as_they_come(count) if self.rule.asynchronous else self._in_rounds(count)

    def judged(self, step: Step, server: Server) -> Step:
        """Return a step with what the model is judged by."""
        return replace(step, scores=self.trainer.evaluate(server.parameters))

    def _in_rounds(self, count: int) -> Iterator[tuple[Step, Server]]:
        """Select, wait for enough reports or the deadline, and step, round after round."""
        for number in range(count):
            if self.rule.is_finished(self.server):
                return
            wanted = self.rule.reports(self.server)
            selected, needed = self.structure.wanted(wanted)
            chosen = self._select(number, selected, needed)
            self.participants.begin(len(chosen))
            received, begin = self.participants.publish(self.server), self.now
            flights = [self.participants.start(int(c), self.server, received, begin, number) for c in chosen]
            if self.rule.asks_first:
                flights = self.participants.admitted(self.server, flights, begin + self.structure.deadline)
            edges = self.structure.edges_of([f.client for f in flights], number, self.seed)
            flights = self.participants.aggregated(flights, edges)
            came = sorted((f for f in flights if not f.lost), key=lambda f: (f.arrives, f.client))
            in_time = [f for f in came if f.arrives <= begin + self.structure.deadline]
            most = self.rule.takes(wanted, len(flights))
            taken = in_time[:most]
            if len(taken) == most or len(in_time) == len(flights):
                self.now = taken[-1].arrives if taken else begin
            elif self.structure.deadline < np.inf:
                self.now = begin + self.structure.deadline
            else:  # the server notices that the others are gone
                self.now = in_time[-1].arrives if in_time else begin
            kept = taken if len(taken) >= needed else []
            yield self._step(sorted(kept, key=lambda f: f.client), [f for f in came if f not in kept], flights)

    def _as_they_come(self, count: int) -> Iterator[tuple[Step, Server]]:
        """Keep so many clients at work, and step whenever enough reports have arrived."""
        flying: list[tuple[float, int, Flight]] = []
        busy: set[int] = set()
        started, waiting, lost = 0, list[Flight](), list[Flight]()
        for _ in range(count):
            if self.rule.is_finished(self.server):
                return
            wanted = self.rule.reports(self.server)
            while len(waiting) < wanted:
                while len(busy) < min(self.rule.concurrency, len(self.population)):
                    client = self._next_client(started, busy)
                    flight = self.participants.start(
                        client, self.server, self.participants.publish(self.server), self.now, started
                    )
                    started += 1
                    if flight.lost:
                        lost.append(flight)
                        continue
                    busy.add(client)
                    heapq.heappush(flying, (flight.arrives, started, flight))
                self.now = flying[0][0]
                while flying and flying[0][0] == self.now and len(waiting) < wanted:
                    flight = heapq.heappop(flying)[2]
                    if not self.rule.waits:
                        busy.discard(flight.client)
                    self.participants.keep(flight)
                    waiting.append(flight)
            yield self._step(waiting, [], [*waiting, *lost])
            busy -= {flight.client for flight in waiting} if self.rule.waits else set()
            waiting, lost = [], []

    def _in_clusters(self, count: int) -> Iterator[tuple[Step, Server]]:
        """Let every cluster do rounds of its own, and step whenever one of them is through."""
        nbytes = self.trainer.layout.nbytes
        clusters = self.rule.clusters_of(self.population, nbytes)
        ending: list[tuple[float, int, list[Flight]]] = []
        for number in range(len(clusters) + count):
            place = number
            if number >= len(clusters):  # all are at work
                self.now, place, flights = heapq.heappop(ending)
                taken = [flight for flight in flights if not flight.lost]
                yield self._step(taken, [], flights)
            cluster, received = clusters[place], self.participants.publish(self.server)
            sent = self.population.send_seconds(cluster.head, nbytes, down=True)
            begin = self.now + sent
            flights = [self.participants.start(c, self.server, received, begin, number) for c in cluster.clients]
            came = max((flight.arrives for flight in flights if not flight.lost), default=begin)
            up = self.population.send_seconds(cluster.head, nbytes, down=False)
            heapq.heappush(ending, (came + up, place, flights))

    def _step(self, taken: Sequence[Flight], late: Sequence[Flight], flights: Sequence[Flight]) -> tuple[Step, Server]:
        """Let the server step with these reports, where there are any."""
        reports, seconds = self.participants.collect(self.structure, taken, flights)
        self.now += seconds
        taken, late = (taken, late) if reports else ([], [*taken, *late])
        if not self.rule.asynchronous:
            for flight in taken:
                self.participants.keep(flight)
        staleness = tuple(self.server.version - flight.version for flight in taken)
        if reports or self.rule.steps_alone:
            self.server = self.rule.aggregate(self.server, reports)
        step = Step(
            seconds=self.now,
            clients=tuple(flight.client for flight in taken),
            late=tuple(flight.client for flight in late),
            lost=tuple(flight.client for flight in flights if flight.lost),
            staleness=staleness,
            up_bytes=int(self.participants.up_bytes.sum()),
            down_bytes=int(self.participants.down_bytes.sum()),
            scores={},
        )
        return step, self.server

    def _select(self, number: int, selected: int, needed: int) -> np.ndarray:
        """Return the clients of a round, for which time passes until enough can be reached."""
        while len(reachable := self.population.reachable(self.now)) < min(needed, len(self.population)):
            later = self.population.availability.next_change(self.now)
            if later == np.inf:
                raise LaconicError(
                    f"{len(reachable)} clients can be reached, and no more will be; a round needs {needed} reports"
                )
            self.now = later
        return self.rule.select(self.server, reachable, selected, draw_of_round(self.seed, number))

    def _next_client(self, number: int, busy: set[int]) -> int:
        """Return a client that is not at work, at random."""
        reachable = self.population.reachable(self.now)
        free = reachable[~np.isin(reachable, list(busy))]
        if not len(free):
            raise LaconicError("no further client can be reached; ask for fewer at a time (`concurrency`)")
        return int(self.rule.select(self.server, free, 1, draw_of_start(self.seed, number))[0])
