"""The server of clients that are processes: it selects them, takes each report once, and steps."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from laconic.errors import ContractError, StrategyError
from laconic.federated.downlink import Downlink
from laconic.federated.layout import Vectors
from laconic.federated.messages import Wire
from laconic.federated.outcome import FederatedOutcome, Step
from laconic.federated.population import Population
from laconic.federated.processes.plain import from_plain, to_plain
from laconic.federated.rehearsal import rehearse
from laconic.federated.reports import Reports, up_to
from laconic.federated.rule import Report, Server
from laconic.federated.selection import draw_of_round, draw_of_start
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task
from laconic.worker import ActorMessage, Field

_LOGGER = logging.getLogger(__name__)
ADDRESS = "federation"
OBSERVER = 1 << 20
"""The number of a process that only waits for the outcome."""


def digest(vectors: Vectors) -> str:
    """Return what tells these vectors from any others."""
    found = hashlib.sha256()
    for name, vector in vectors.items():
        found.update(name.encode() + vector.contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


@dataclass(eq=False)
class _Round:
    """Who is at work: in one round, or, without rounds, at this time.

    - `number`: of each client that was selected, that of its round or of its start.
    - `reports`: what has come, in order.
    - `lost`: who is not waited for, unless it comes back.
    - `refused`: whose report was not what a client sends; it has no second try.
    """

    number: dict[int, int] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    @property
    def waits_for(self) -> list[int]:
        gone = {*(report.client for report in self.reports), *self.lost, *self.refused}
        return [client for client in self.number if client not in gone]


class Coordinator:
    """An actor whose senders are processes, each of which is home to some clients: client k to process k modulo their
    number.

    A process joins, asks for work, which waits until a client of it is selected, and writes reports. A report is taken
    if its client was selected, has not reported yet, and started from the model that it was sent; anything else changes
    nothing. What a client is sent tells in which round its last report was taken, so that it knows what to remember.
    All state is plain: a server that is killed goes on from its last snapshot, and clients send again what came after
    it. A round whose clients are lost ends with those that are left, or is repeated where these are too few.
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        strategy: FederatedStrategy,
        *,
        steps: int,
        rate: float,
        seed: int,
        processes: int,
    ) -> None:
        if objection := strategy.simulated_only:
            raise StrategyError(objection)
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._rule, self._structure, self._population = strategy.rule, strategy.structure, population
        self._steps, self._rate, self._seed, self._processes = steps, rate, seed, processes
        first = rehearse(strategy, task, population, rate, seed)
        self._reports = Reports(Wire(strategy.compressor, first.layout, seed), first.sent)
        self._server: Server = first.server
        self._downlink = Downlink(Wire(strategy.structure.downward(), first.layout, seed), 0)
        self._present: set[int] = set()
        self._round: _Round | None = None
        self._started = 0  # rounds, or clients where there are none
        self._sent: dict[int, tuple[str, int]] = {}  # digest and bytes of each version that somebody may start from
        self._taken = np.full(len(population), -1, dtype=np.int64)  # the round of each client's last report
        self._up, self._down = (np.zeros(len(population), dtype=np.int64) for _ in range(2))
        self._log: list[Step] = []
        self._published: Vectors = {}
        self._begun = False
        self._seconds = 0.0  # of all rounds, as clients' own clocks say

    # ------------------------------------------------------------------------------------------ an actor

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if message.kind == "join":
            self._join(sender)
            return ActorMessage("joined")
        if message.kind == "settle":  # what came before is in the next snapshot
            return ActorMessage("settled")
        if message.kind == "close" and sender < 0:
            self._close_if(message.number("round"))
            return ActorMessage("closed")
        if message.kind == "failed":
            return self._failed(sender, message.number("client"), message.number("number"))
        if message.kind == "report":
            return self._report(sender, message)
        raise ContractError(f"the kind {message.kind!r} of a message is not known here")

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if message.kind == "outcome":
            return self._outcome() if self.is_done else None
        if message.kind != "work":
            raise ContractError(f"the kind {message.kind!r} of a question is not known here")
        if self.is_done:
            return ActorMessage("done")
        mine = [] if self._round is None else [c for c in self._round.waits_for if self._home(c) == sender]
        return self._work(mine[0], message.number("edition")) if mine else None

    def lose(self, sender: int) -> None:
        self._present.discard(sender)
        if self._round is not None:
            for client in [client for client in self._round.waits_for if self._home(client) == sender]:
                self._give_up(self._round.lost, client)
            self._go_on()

    def state(self) -> dict[str, Any]:
        going = self._round
        return {
            "server": to_plain(self._server),
            "downlink": self._downlink.state(),
            "published": dict(self._published),
            "present": sorted(self._present),
            "round": None if going is None else to_plain((going.number, going.reports, going.lost, going.refused)),
            "started": self._started,
            "sent": to_plain(self._sent),
            "counts": to_plain((self._taken, self._up, self._down)),
            "log": [to_plain(asdict(step)) for step in self._log],
            "begun": self._begun,
            "seconds": self._seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._server = from_plain(state["server"])
        self._downlink.restore(state["downlink"])
        self._published = state["published"]
        self._present = set(state["present"])
        self._round = None if state["round"] is None else _Round(*from_plain(state["round"]))
        self._started, self._begun, self._seconds = state["started"], state["begun"], state["seconds"]
        self._sent = from_plain(state["sent"])
        self._taken, self._up, self._down = (array.copy() for array in from_plain(state["counts"]))
        self._log = [Step(**from_plain(step)) for step in state["log"]]

    # ------------------------------------------------------------------------------------------ inside

    @property
    def is_done(self) -> bool:
        """Whether no further step is made."""
        return self.made >= self._steps or self._rule.is_finished(self._server)

    @property
    def made(self) -> int:
        """How many steps were made."""
        return len(self._log)

    @property
    def left(self) -> int:
        """How many clients can be reached."""
        return len(self._reachable())

    @property
    def current(self) -> int | None:
        """The number of the round that is going on, for the clock of its deadline."""
        return self._started - 1 if self._round is not None and not self._rule.asynchronous else None

    def _home(self, client: int) -> int:
        return client % self._processes

    def _join(self, sender: int) -> None:
        if not 0 <= sender < self._processes:
            raise ContractError(f"this run has {self._processes} processes, none of which is number {sender}")
        self._present.add(sender)
        if self._round is not None:  # what was lost with its last life may still come
            self._round.lost = [client for client in self._round.lost if self._home(client) != sender]
        self._begun = self._begun or len(self._present) == self._processes
        self._go_on()

    def _go_on(self) -> None:
        """Do what can be done now: close a round, begin the next."""
        while self._begun and not self.is_done:
            if self._rule.asynchronous:
                if not self._step_as_they_come():
                    return
            elif self._round is None:
                if not self._begin():
                    return
            elif len(self._round.reports) < self._rule.clients and self._round.waits_for:
                return
            else:
                self._close(self._round)

    def _give_up(self, among: list[int], client: int) -> None:
        """Wait for a client no longer; without rounds another is started in its place."""
        among.append(client)
        if self._rule.asynchronous and self._round is not None:
            del self._round.number[client]

    def _reachable(self) -> np.ndarray:
        everyone = np.flatnonzero(self._population.shards.sizes)
        return everyone[np.isin(everyone % self._processes, sorted(self._present))]

    def _begin(self) -> bool:
        selected, needed = self._structure.wanted(self._rule.clients)
        reachable = self._reachable()
        if len(reachable) < min(needed, len(self._population)):
            return False
        chosen = self._rule.select(self._server, reachable, selected, draw_of_round(self._seed, self._started))
        self._publish()
        self._round = _Round({int(client): self._started for client in chosen})
        self._started += 1
        return True

    def _close(self, going: _Round) -> None:
        """End a round with what has come; where that is too little, nothing comes of it."""
        _, needed = self._structure.wanted(self._rule.clients)
        taken = going.reports if len(going.reports) >= needed else []
        self._round = None
        self._step(sorted(taken, key=lambda report: report.client), going)

    def _close_if(self, number: int) -> None:
        """Close the round of this number, if it is the one that is going on: its time is over."""
        if self._round is not None and self.current == number and not self.is_done:
            self._close(self._round)
            self._go_on()

    def _step_as_they_come(self) -> bool:
        """Keep clients at work, and step where enough have reported; tell whether anything changed."""
        going = self._round = self._round or _Round()
        if len(going.reports) >= self._rule.clients:
            taken, going.reports = going.reports[: self._rule.clients], going.reports[self._rule.clients :]
            self._step(taken, going)
            going.lost, going.refused = [], []
            return True
        free = self._reachable()
        free = free[~np.isin(free, list(going.number))]
        if len(going.number) >= min(self._rule.concurrency, len(self._population)) or not len(free):
            return False
        self._publish()
        draw = draw_of_start(self._seed, self._started)
        going.number[int(self._rule.select(self._server, free, 1, draw)[0])] = self._started
        self._started += 1
        return True

    def _publish(self) -> None:
        self._published = self._downlink.publish(self._rule.down(self._server), self._server.version)
        version = self._server.version
        if version not in self._sent:
            nbytes = sum(vector.nbytes for vector in self._published.values())
            self._sent = {v: sent for v, sent in self._sent.items() if self._rule.asynchronous}
            self._sent[version] = digest(self._published), nbytes

    def _step(self, taken: Sequence[Report], going: _Round) -> None:
        """Let the server step with these reports, where there are any."""
        behind = tuple(self._server.version - report.version for report in taken)
        if taken:
            self._server = self._rule.aggregate(self._server, taken)
        if not self._rule.asynchronous:
            self._seconds += max((report.seconds for report in going.reports), default=0.0)
            for report in taken:
                self._taken[report.client] = going.number[report.client]
        elif taken:
            self._publish()
        clients = tuple(report.client for report in taken)
        late = () if taken else tuple(report.client for report in going.reports)
        up, down = (int(counted.sum()) for counted in (self._up, self._down))
        self._log.append(Step(self._seconds, clients, late, (*going.lost, *going.refused), behind, up, down, {}))

    def _work(self, client: int, edition: int) -> ActorMessage:
        """Return what a client is to do, with the model or with what has changed since the edition that it has."""
        assert self._round is not None
        work = self._rule.work(self._server, client, self._population, self._rate)
        fields: dict[str, Field] = {
            "client": client,
            "number": self._round.number[client],
            "version": self._server.version,
            "model": self._sent[self._server.version][0],
            "taken": int(self._taken[client]),
            "edition": self._downlink.edition,
            **{name: value for name, value in asdict(work).items() if value is not None},
        }
        changes = self._downlink.since(edition)
        if changes is None:
            fields["vectors"] = list(self._published)
            return ActorMessage("work", fields, tuple(self._published.values()))
        tensors: list[Tensor] = []
        for place, (version, change) in enumerate(changes):
            own, payload = change.written()
            fields |= {f"{place}/version": version, f"{place}/tensors": len(payload)}
            fields |= {f"{place}/{name}": value for name, value in own.items()}
            tensors += payload
        return ActorMessage("changes", {**fields, "changes": len(changes)}, tuple(tensors))

    def _report(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        client, number, version = (message.number(name) for name in ("client", "number", "version"))
        if not 0 <= client < len(self._population) or self._home(client) != sender:
            raise ContractError(f"client {client} is not one of process {sender}")
        if number >= self._started and not self.is_done:
            return None  # of a round that a server which was started again has not begun again yet
        going = self._round
        if self.is_done or going is None or going.number.get(client) != number:
            return _refused(f"round {number} is over, or client {client} was not selected in it")
        if client not in going.waits_for and client not in going.lost and not self._rule.asynchronous:
            return _refused(f"client {client} has reported already")
        model, nbytes = self._sent.get(version, (None, 0))
        if model is None or message.fields.get("model") != model:
            return _refused(f"client {client} started from a model that nobody has sent it")
        samples, lengths = len(self._population.shards[client]), self._rule.lengths(self._server, self._published)
        work = self._rule.work(self._server, client, self._population, self._rate)
        try:
            report = self._reports.read(message, client, version, samples, lengths, self._rule.ranges(work, samples))
            fetched = up_to(nbytes, message.fields, "fetched")  # changes of the model are sent where they are shorter
        except ContractError as error:
            self._give_up(going.refused, client)
            self._go_on()
            return _refused(str(error))
        self._up[client] += message.nbytes
        self._down[client] += fetched
        going.reports.append(report)
        going.lost = [one for one in going.lost if one != client]
        if self._rule.asynchronous:  # every report is taken in its turn
            self._taken[client] = going.number.pop(client)
        self._go_on()
        return ActorMessage("received")

    def _failed(self, sender: int, client: int, number: int) -> ActorMessage:
        """Give up a client in this round, since it cannot do its part."""
        going = self._round
        waits = going is not None and client in going.waits_for and going.number[client] == number
        if going is not None and waits and self._home(client) == sender:
            self._give_up(going.refused, client)
            self._go_on()
        return ActorMessage("given up")

    def _outcome(self) -> ActorMessage:
        steps = msgspec.json.encode(self._log)
        tensors = (
            self._rule.model(self._server),
            self._server.parameters,
            torch.from_numpy(self._up.copy()),
            torch.from_numpy(self._down.copy()),
            torch.frombuffer(bytearray(steps), dtype=torch.uint8),
        )
        return ActorMessage("outcome", {"version": self._server.version}, tensors)


def _refused(why: str) -> ActorMessage:
    """Return the answer to a report that is not taken, and note it for whoever looks after the server."""
    _LOGGER.warning("a report is refused: %s", why)
    return ActorMessage("refused", {"why": why})


def outcome_of(message: ActorMessage) -> FederatedOutcome:
    """Return what came of a run, as the server has told it; what its rule kept beside the model stays there."""
    model, parameters, up, down, steps = message.tensors
    log = msgspec.json.decode(steps.numpy().tobytes(), type=list[Step])
    server = Server(parameters.clone(), message.number("version"))
    return FederatedOutcome(model.clone(), server, log, up.numpy().copy(), down.numpy().copy())
