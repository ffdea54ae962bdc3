"""The interface of a rule: what the server sends, what a client does with it, and what becomes of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work
from laconic.federated.partition import Integers
from laconic.federated.population import Population
from laconic.knobs import Technique
from laconic.registry import knob


@dataclass(frozen=True, eq=False)
class Server:
    """What the server knows. Rules return another in place of changing it.

    - `parameters`: the model.
    - `version`: how often the model was changed.
    - `kept`: what the rule keeps beside it.
    """

    parameters: Tensor
    version: int = 0
    kept: Mapping[str, Any] = field(default_factory=dict)

    def next(self, parameters: Tensor, **kept: Any) -> Server:
        """Return the server after a change of the model, with these things kept in place of older ones."""
        return Server(parameters, self.version + 1, {**self.kept, **kept})


@dataclass(frozen=True, eq=False)
class Sent:
    """What a client sends: vectors of the model's length, and numbers beside them."""

    vectors: Vectors
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Report:
    """What has arrived from a client.

    - `client`: its number.
    - `version`: that of the model from which it started.
    - `samples`: how many samples it holds.
    - `vectors`, `numbers`: what it sent, decoded.
    - `seconds`, `training`: how long it took from being sent the model to its report, and how much of that it trained.
    """

    client: int
    version: int
    samples: int
    vectors: Vectors
    numbers: Mapping[str, float]
    seconds: float = 0.0
    training: float = 0.0


@dataclass(frozen=True)
class Rule(Technique):
    """A rule of federated learning. Its knobs are its fields; what server and clients remember is handed to it and
    returned by it."""

    axis: ClassVar[str] = "federated"
    asynchronous: ClassVar[bool] = False
    """Whether the server steps as soon as so many reports have arrived, from whichever version they started."""

    @property
    def concurrency(self) -> int:
        """How many clients are at work at any time, where the rule is asynchronous."""
        return self.clients

    clients: int = knob(10, low=1, doc="reports that make a step of the server: the clients of a round")
    epochs: int = knob(1, low=1, doc="how often a client goes through its samples in a round")
    batch: int = knob(10, low=0, doc="samples of a client's step; 0 for all of them")

    def init(self, start: Tensor, population: Population) -> Server:
        """Return the server before the first round."""
        return Server(start.clone())

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        """Return which of the clients that can be reached take part, so many of them: at random."""
        return np.sort(draw.choice(reachable, size=min(count, len(reachable)), replace=False))

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        """Return how much a client is to train, at this learning rate."""
        return Work(self.epochs, self.batch, rate)

    def down(self, server: Server) -> Vectors:
        """Return what all clients of a round are sent."""
        return {"parameters": server.parameters}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        """Let a client work with what it has received, and return what it sends.

        - `memory`: what the client kept, by names of the rule's own; it may be changed, and is kept if the report is
          taken.
        """
        start = received["parameters"]
        return Sent({"change": local.descend(start).end - start})

    def is_finished(self, server: Server) -> bool:
        """Return whether no further round is to begin."""
        return False

    def model(self, server: Server) -> Tensor:
        """Return the parameters that the run ends with."""
        return server.parameters

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        """Return the server after a step, from the reports that it waited for: the weighted mean of all changes."""
        return server.next(server.parameters + weighted_mean(reports, "change"))


def weighted_mean(reports: Sequence[Report], vector: str = "change") -> Tensor:
    """Return the mean of the clients' vectors, weighted by their numbers of samples."""
    total = sum(report.samples for report in reports)
    return weighted_sum(reports, [report.samples / total for report in reports], vector)


def weighted_sum(reports: Sequence[Report], weights: Sequence[float], vector: str = "change") -> Tensor:
    """Return the sum of the clients' vectors with these weights, in the order of the reports."""
    found = torch.zeros_like(reports[0].vectors[vector])
    for report, weight in zip(reports, weights, strict=True):
        found.add_(report.vectors[vector], alpha=weight)
    return found
