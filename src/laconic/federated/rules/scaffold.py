"""SCAFFOLD: control variates take out of each client's steps what is its own alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server, weighted_sum
from laconic.registry import knob, technique


@technique("scaffold", paper="Karimireddy et al., ICML 2020")
@dataclass(frozen=True)
class Scaffold(Rule):
    """Correct every step of a client by the difference between all clients' direction c and its own, c_i.

    Client: y ← y − η (g − c_i + c), K times; then c_i becomes c_i − c + (x − y)/(K η), which the paper calls option II,
    or the gradient at x over all its samples (option I). It sends the changes of y and of c_i: twice the bytes of
    FedAvg, both ways. The server adds their means, of c in the share of clients that took part. A client keeps c_i
    until it is selected again.
    """

    option: str = knob("II", choices=("I", "II"), doc="how a client's control variate is renewed")
    server_rate: float = knob(1.0, low=0.0, doc="what the mean change is multiplied by")

    def init(self, start: Tensor, population: Population) -> Server:
        return Server(start.clone(), kept={"control": torch.zeros_like(start), "population": len(population)})

    def down(self, server: Server) -> Vectors:
        return {"parameters": server.parameters, "control": server.kept["control"]}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start, common = received["parameters"], received["control"]
        own = memory.get("control", torch.zeros_like(start))
        done = local.descend(start, lambda gradient, at: gradient - own + common)
        change = done.end - start
        if self.option == "I":
            renewed = local.gradient(start)
        else:
            renewed = own - common - change / (done.steps * local.work.rate)
        memory["control"] = renewed
        return Sent({"change": change, "control": renewed - own})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        each = [1 / len(reports)] * len(reports)
        share = len(reports) / server.kept["population"]
        return server.next(
            server.parameters + self.server_rate * weighted_sum(reports, each),
            control=server.kept["control"] + share * weighted_sum(reports, each, "control"),
        )
