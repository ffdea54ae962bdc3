"""DP-FedAvg: each client's change is clipped, and noise on their sum hides whether any one client took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.partition import Integers
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.registry import knob, technique


@technique("dp_fedavg", paper="McMahan, Ramage, Talwar, Zhang, ICLR 2018")
@dataclass(frozen=True)
class DPFedAvg(Rule):
    """FedAvg with differential privacy of whole clients: every client takes part by a coin of its own, its change is
    cut to the length S, and the server adds Gaussian noise of standard deviation z S to the sum, which it divides by
    the number of clients that are expected. `federated.privacy` says what that guarantees.

    Readings chosen: flat clipping, all clients count alike, and the fixed denominator. The server clips again what it
    has decoded, as a compressor may have made it longer; behind `secagg` it sees the sum alone, and `privacy` counts
    what rounding adds. A change that is not finite counts as none. The server steps even if nobody has come: that, too,
    would tell something. Noise comes from the operating system, unless a run is to be repeated (`seed`); it is of
    floating-point numbers, whose lowest bits are not protected.
    """

    steps_alone: ClassVar[bool] = True
    pools: ClassVar[Literal["no", "samples", "alike"]] = "alike"

    clip: float = knob(1.0, above=0.0, doc="S, the largest length of a client's change")
    noise: float = knob(1.0, low=0.0, doc="z, the standard deviation of the noise on the sum, over S")
    seed: int = knob(-1, low=-1, doc="of the noise, to repeat a run; -1 for fresh noise, as privacy needs it")

    def init(self, start: Tensor, population: Population) -> Server:
        return Server(start.clone(), kept={"population": len(population)})

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        """Return the clients whose coin says so: each with the probability that `count` of the population have."""
        rate = count / float(server.kept["population"])
        chosen: Integers = reachable[draw.random(len(reachable)) < rate]
        return chosen

    def takes(self, wanted: int, selected: int) -> int:
        return selected

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        sent = super().train(local, received, memory)
        return replace(sent, vectors={"change": clipped(sent.vectors["change"], self.clip)})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        total = torch.zeros_like(server.parameters)
        for report in reports:
            change = report.vectors["change"]
            total += report.count * (change if report.count > 1 else clipped(change, self.clip))
        draw = np.random.default_rng(None if self.seed < 0 else [self.seed, 0xD9, server.version])
        hidden = torch.from_numpy(draw.normal(0.0, self.noise * self.clip, total.numel())).to(total.dtype)
        return server.next(server.parameters + (total + hidden) / self.clients)


def clipped(change: Tensor, longest: float) -> Tensor:
    """Return a vector of at most this length: the same, shortened, or zeros where it is not finite."""
    length = float(change.double().norm())
    if not np.isfinite(length):
        return torch.zeros_like(change)
    return change if length <= longest else change * (longest / length)
