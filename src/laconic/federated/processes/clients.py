"""Clients that answer work with a report, wherever it comes from, and remember what was taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from laconic.federated.client_memory import ClientMemory, Memory
from laconic.federated.downlink import Change, after
from laconic.federated.local import Trainer, Work
from laconic.federated.messages import Message, Wire
from laconic.federated.participation import train_client
from laconic.federated.population import Population
from laconic.federated.processes.coordinator import digest
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task
from laconic.worker import ActorMessage

_NUMBER = "number"


class Clients:
    """The clients of one place, which share what it has received.

    What a client would remember after a report is *pending* until the server says that the report was taken, and is
    then moved to its memory.

    - `memory`, `pending`: where clients keep both.
    - `settle`: is called before a memory is replaced.
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        strategy: FederatedStrategy,
        seed: int,
        memory: ClientMemory,
        pending: ClientMemory,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._rule, self._population = strategy.rule, population
        self._trainer = Trainer(task, seed)
        self._wire = Wire(strategy.compressor, self._trainer.layout, seed)
        self._downward = Wire(strategy.structure.downward(), self._trainer.layout, seed)
        self._memory, self._pending, self._settle = memory, pending, settle
        self.seen: dict[str, Tensor] = {}
        self.edition = -1
        """Which edition of what the server publishes was seen last; -1 for none."""

    def answer(self, work: ActorMessage) -> ActorMessage | None:
        """Do what the server asks for and return the report, or nothing where the model that came is not the one that
        the server means, so that it must be asked for again."""
        began = time.monotonic()
        if not self._receive(work):
            return None
        client, number = work.number("client"), work.number(_NUMBER)
        memory = settled(client, number, work.number("taken"), self._memory, self._pending, self._settle)
        message, kept = train_client(
            self._rule,
            self._trainer,
            self._wire,
            client,
            self._population.shards[client],
            _work_of(work.fields),
            self.seen,
            work.number("version"),
            memory,
        )
        took = time.monotonic() - began
        if kept:
            self._pending.save(client, {_NUMBER: torch.tensor(number), **kept})
        own, tensors = message.written()
        told = {name: work.fields[name] for name in ("client", _NUMBER, "version", "model", "edition")}
        report = {**own, **told, "fetched": work.nbytes, "seconds": took, "training": took}
        return ActorMessage("report", report, tensors)

    def _receive(self, work: ActorMessage) -> bool:
        """Take in the model, or what has changed of it; tell whether it is the one that the server means."""
        if work.kind == "changes":
            seen = after(self._downward, self.seen, _changes_of(work))
        else:
            names = work.fields["vectors"]
            assert isinstance(names, list)
            seen = {str(name): vector.clone() for name, vector in zip(names, work.tensors, strict=True)}
        if digest(seen) != work.fields["model"]:  # the server was started again, and went on with others
            self.seen, self.edition = {}, -1
            return False
        self.seen, self.edition = seen, work.number("edition")
        return True


def settled(
    client: int,
    number: int,
    taken: int,
    memory: ClientMemory,
    pending: ClientMemory,
    settle: Callable[[], None] = lambda: None,
) -> Memory:
    """Return a client's memory, with what was pending if the report to which it belongs was taken.

    - `number`: of the round that it takes part in now.
    - `taken`: of the round whose report was taken last.
    """
    waiting = pending.load(client)
    if waiting:
        of = int(waiting.pop(_NUMBER))
        if of == taken:
            settle()
            memory.save(client, waiting)
        if of != number:
            pending.save(client, {})
    return memory.load(client)


def _work_of(told: Mapping[str, Any]) -> Work:
    return Work(**{field.name: told[field.name] for field in fields(Work) if field.name in told})


def _changes_of(work: ActorMessage) -> list[Change]:
    found, begin = [], 0
    for place in range(work.number("changes")):
        prefix = f"{place}/"
        own = {name.removeprefix(prefix): value for name, value in work.fields.items() if name.startswith(prefix)}
        end = begin + work.number(f"{prefix}tensors")
        found.append((work.number(f"{prefix}version"), Message.read(own, work.tensors[begin:end])))
        begin = end
    return found
