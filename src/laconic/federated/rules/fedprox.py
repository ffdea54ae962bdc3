"""FedProx: clients are held near the model that they were sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Work, held_near
from laconic.federated.population import Population
from laconic.federated.rule import Rule, Sent, Server
from laconic.registry import knob, technique


@technique("fedprox", paper="Li et al., MLSys 2020")
@dataclass(frozen=True)
class FedProx(Rule):
    """FedAvg whose clients minimise their own loss plus μ/2 ‖w − w_t‖², so that they do not move far from the model w_t
    that they were sent, however much they train.

    Clients do as much of their work as they manage: with `seconds` each trains for that long at most, by its speed, and
    sends what it has then, so that stragglers need not be dropped; each makes one step at least. The server weighs by
    samples, as in FedAvg, where the paper samples clients by their size and averages evenly.
    """

    pools: ClassVar[Literal["no", "samples", "alike"]] = "samples"

    mu: float = knob(0.01, low=0.0, doc="μ, how strongly clients are held near the model they were sent")
    seconds: float = knob(math.inf, above=0.0, doc="for how long a client trains at most")

    def work(self, server: Server, client: int, population: Population, rate: float) -> Work:
        whole, held = Work(self.epochs, self.batch, rate), len(population.shards[client])
        step = population.train_seconds(client, min(self.batch or held, held), 1)
        if self.seconds >= step * whole.steps_made(held):
            return whole
        return replace(whole, steps=max(1, int(self.seconds / step)))

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        return Sent({"change": local.descend(start, held_near(start, self.mu)).end - start})
