"""The interface of a rule: what the server sends, what a client does with it, and what becomes of the reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from laconic.compression.base import Compressor
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work
from laconic.federated.partition import Integers
from laconic.federated.population import Population
from laconic.federated.setting import Setting
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
    """What is sent, up or down.

    - `vectors`: vectors of the model's length, or shorter, which the sentence's compression encodes.
    - `numbers`: a few numbers beside them.
    - `masks`: of a bit for each scalar.
    - `raw`: tensors that are sent as they are: what a rule has packed by itself, or what must not be compressed.
    """

    vectors: Vectors
    numbers: Mapping[str, float] = field(default_factory=dict)
    masks: Vectors = field(default_factory=dict)
    raw: Vectors = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Report:
    """What has arrived from a client, or the mean of what several have sent, where the server learns no more.

    - `client`: its number; -1 for a mean.
    - `version`: that of the model from which it started.
    - `samples`: how many samples it holds.
    - `vectors`, `numbers`, `masks`: what it sent, decoded; tensors that were sent as they are stand among the vectors.
    - `count`: how many clients it stands for.
    - `seconds`, `training`: how long it took from being sent the model to its report, and how much of that it trained.
    - `arrived`: when the report arrived.
    - `received`: what it was sent, as it was decoded.
    - `edge`: the number of the aggregator that it reached the server by, where there are several.
    """

    client: int
    version: int
    samples: int
    vectors: Vectors
    numbers: Mapping[str, float]
    seconds: float = 0.0
    training: float = 0.0
    arrived: float = 0.0
    masks: Vectors = field(default_factory=dict)
    count: int = 1
    received: Vectors = field(default_factory=dict)
    edge: int = 0


Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest value of numbers, by name."""
NOT_NEGATIVE = 0.0, math.inf


def about(value: float) -> tuple[float, float]:
    """Return the range of a number that can have one value alone, but for its rounding."""
    room = 1e-6 * abs(value)
    return value - room, value + room


@dataclass(frozen=True)
class Cluster:
    """Clients that train in rounds of their own, and the one of them that relays their models to the server."""

    clients: tuple[int, ...]
    head: int


@dataclass(frozen=True)
class Rule(Technique):
    """A rule of federated learning. Its knobs are its fields; what server and clients remember is handed to it and
    returned by it."""

    axis: ClassVar[str] = "federated"
    asynchronous: ClassVar[bool] = False
    """Whether the server steps as soon as so many reports have arrived, from whichever version they started."""
    waits: ClassVar[bool] = False
    """Whether a client that has reported waits for the next step, where the rule is asynchronous."""

    steps_alone: ClassVar[bool] = False
    """Whether the server steps even if nobody has reported, so that nobody can tell."""
    pools: ClassVar[Literal["no", "samples", "alike"]] = "no"
    """Whether one report with the mean of all does as well as all of them: the mean by samples, or of all alike."""
    clustered: ClassVar[bool] = False
    """Whether clients form clusters, which `clusters_of` returns, each with rounds of its own."""
    asks_first: ClassVar[bool] = False
    """Whether clients of a round first send their numbers alone, and only those that `admitted` returns the rest."""
    varies: ClassVar[bool] = False
    """Whether reports have other parts in some rounds than in the first, so that no server knows beforehand what it may
    be sent."""
    personal: ClassVar[bool] = False
    """Whether each client is sent something of its own, which `down_to` returns, in place of what `down` does."""

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

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        """Return the server before the first round, where that depends on the model's tensors or their compression."""
        return self.init(start, population)

    def reports(self, server: Server) -> int:
        """Return how many reports make the next step."""
        return self.clients

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        """Return which of the clients that can be reached take part, so many of them: at random."""
        return np.sort(draw.choice(reachable, size=min(count, len(reachable)), replace=False))

    def takes(self, wanted: int, selected: int) -> int:
        """Return how many reports a round takes, where so many are wanted and so many clients were selected."""
        return wanted

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        """Return how much a client is to train, at this learning rate."""
        return Work(self.epochs, self.batch, rate)

    def compressor(self, server: Server, client: int, written: Compressor) -> Compressor:
        """Return how a client encodes what it sends, where the sentence says so."""
        return written

    def clusters_of(self, population: Population, nbytes: int) -> list[Cluster]:
        """Return the clusters of all clients, where the rule is clustered.

        - `nbytes`: of a model.
        """
        raise NotImplementedError

    def admitted(self, server: Server, offers: Sequence[Report]) -> Sequence[int]:
        """Return which clients are to send their vectors, from what all have told before, where the rule `asks_first`.

        - `offers`: reports with numbers alone.
        """
        return [report.client for report in offers]

    def down(self, server: Server) -> Vectors:
        """Return what all clients of a round are sent."""
        return {"parameters": server.parameters}

    def share(self, server: Server, client: int, published: Vectors) -> Vectors:
        """Return the part of this that one client is sent."""
        return published

    def down_to(self, server: Server, client: int) -> Sent:
        """Return what one client is sent, where the rule is personal. What a client keeps, and the server of it, is
        changed when a report is taken: neither remembers what was sent to one that did not report."""
        return Sent(self.down(server))

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        """Let a client work with what it has received, and return what it sends.

        - `memory`: what the client kept, by names of the rule's own; it may be changed, and is kept if the report is
          taken.
        """
        start = received["parameters"]
        return Sent({"change": local.descend(start).end - start})

    def remember(self, memory: Memory, sent: Callable[[], Vectors]) -> None:
        """Change what a client keeps once its message is encoded, where that depends on what the server will read.

        - `memory`: as `train` has left it.
        - `sent`: returns what the server decodes.
        """

    def lengths(self, server: Server, sent: Vectors) -> set[int]:
        """Return how long the vectors of a report to this server may be: those of others are refused.

        - `sent`: what the client was sent.
        """
        return {server.parameters.numel(), *(vector.numel() for vector in sent.values())}

    def ranges(self, work: Work, samples: int) -> Ranges:
        """Return from which to which value the numbers are that a client can have found, where it did this work with so
        many samples: a report that says anything else is refused. Other numbers are taken if they are finite."""
        return {}

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
    """Return the sum of the clients' vectors with these weights, in the order of the reports: that of each aggregator's
    clients, and then of the aggregators."""
    sums: dict[int, Tensor] = {}
    for report, weight in zip(reports, weights, strict=True):
        sums.setdefault(report.edge, torch.zeros_like(report.vectors[vector]))
        sums[report.edge].add_(report.vectors[vector], alpha=weight)
    first, *others = sums.values()
    for other in others:
        first.add_(other)
    return first
