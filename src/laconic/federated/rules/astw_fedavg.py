"""Layers that are exchanged at two paces, and models that fade while their clients are away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.none import Identity
from laconic.errors import StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.federated.setting import Setting
from laconic.registry import knob, technique


@dataclass(frozen=True, eq=False)
class Received:
    """A part of a client's model as it was last received, in which round, and its number of samples."""

    values: Tensor
    at: int
    samples: int


def faded_weights(held: Sequence[Received], now: int, base: float) -> list[float]:
    """Return the weights of clients' models, of sum 1: by samples, and less by the base with every round of age."""
    each = [one.samples * base ** (one.at - now) for one in held]
    return [weight / sum(each) for weight in each]


@technique("astw_fedavg", aliases=["twafl"], paper="Chen, Sun and Jin, IEEE TNNLS 31(10), 2020")
@dataclass(frozen=True)
class AstwFedAvg(Rule):
    """Shallow layers in every round and deep ones, which have most of the parameters, in the last rounds of each loop
    alone; in between, clients keep and train deep layers of their own.

    The server keeps the last shallow and the last deep layers of every client, and takes their mean by samples times
    (e/2)^−age, in rounds: who is away fades. Readings chosen: weights are divided by their sum, as a public
    reproduction of the paper does; a client that has not been sent deep layers yet has those of the first model, which
    all know. On digits with a small convolutional network, 91 % of it deep, and 4 of 20 clients, it did not halve the
    bytes: 85 % took 1.5 times fewer than FedAvg's with labels divided by Dirichlet draws; on even data it took 1.2
    times fewer with one seed, and was not reached in three loops with another. With the bytes of twelve rounds of
    FedAvg, and each with the better of two rates, two loops ended 0.8 points below it with two seeds and 1.9 above it
    with a third.
    """

    varies: ClassVar[bool] = True

    shallow: int = knob(2, low=1, doc="how many of the model's first tensors are its shallow layers")
    loop: int = knob(15, low=1, doc="rounds of a loop")
    both: int = knob(5, low=0, doc="rounds at the end of each loop in which deep layers are exchanged too")
    base: float = knob(math.e / 2, low=1.0, doc="by how much the weight of a model falls in every round")

    def begin(self, start: Tensor, population: Population, setting: Setting) -> Server:
        if self.shallow >= len(setting.layout.specs):
            raise StrategyError(f"the model has {len(setting.layout.specs)} tensors; some of them must be deep layers")
        if not isinstance(setting.down, Identity):
            raise StrategyError("layers that are not sent in every round are sent down as they are; write server")
        cut = sum(spec.numel for spec in setting.layout.specs[: self.shallow])
        return Server(start.clone(), kept={"cut": cut, "shallow": {}, "deep": {}})

    def exchanges_both(self, version: int) -> bool:
        """Return whether deep layers are exchanged in this round."""
        return version % self.loop >= self.loop - self.both

    def down(self, server: Server) -> Vectors:
        shallow, deep = self._parts(server)
        return {"shallow": shallow, "deep": deep} if self.exchanges_both(server.version) else {"shallow": shallow}

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        cut = received["shallow"].numel()
        deep = received.get("deep", memory.get("deep", local.trainer.start[cut:]))
        end = local.descend(torch.cat([received["shallow"], deep])).end
        memory["deep"] = end[cut:].clone()
        return Sent({"shallow": end[:cut], "deep": end[cut:]} if "deep" in received else {"shallow": end[:cut]})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        parts, kept = dict(zip(("shallow", "deep"), self._parts(server), strict=True)), {}
        for name in parts:
            new = {r.client: Received(r.vectors[name], server.version, r.samples) for r in reports if name in r.vectors}
            kept[name] = {**server.kept[name], **new}
            if new:
                held = list(kept[name].values())
                weights = faded_weights(held, server.version, self.base)
                parts[name] = torch.stack([w * one.values for w, one in zip(weights, held, strict=True)]).sum(0)
        return server.next(torch.cat(list(parts.values())), **kept)

    def _parts(self, server: Server) -> tuple[Tensor, Tensor]:
        cut = server.kept["cut"]
        return server.parameters[:cut], server.parameters[cut:]
