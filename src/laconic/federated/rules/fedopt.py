"""FedOpt: the server treats the mean change of clients as a gradient and gives it to an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule, Server, weighted_mean
from laconic.registry import knob, technique


@technique("fedopt", paper="Reddi et al., ICLR 2021; Hsu, Qi and Brown, 2019 (FedAvgM)")
@dataclass(frozen=True)
class FedOpt(Rule):
    """Adaptive server optimizers: FedAdam, FedYogi, FedAdagrad and FedAvgM, by `optimizer`.

    With the mean change d: m ← β₁ m + (1 − β₁) d, v by the optimizer's own rule, x ← x + η m/(√v + τ), without a
    correction of the first steps; v starts at τ². FedAvgM: m ← β₁ m + d, x ← x + η m. FedAdagrad takes β₁ = 0, whatever
    is said. Clients and bytes are FedAvg's.
    """

    pools: ClassVar[Literal["no", "samples", "alike"]] = "samples"

    optimizer: str = knob("adam", choices=("adam", "yogi", "adagrad", "momentum"), doc="the server's optimizer")
    server_rate: float = knob(0.1, low=0.0, doc="η, the server's learning rate")
    beta1: float = knob(0.9, low=0.0, high=1.0, doc="β₁, how much of the last direction is kept")
    beta2: float = knob(0.99, low=0.0, high=1.0, doc="β₂, how much of the last squares is kept")
    tau: float = knob(1e-3, low=0.0, doc="τ, added to the root of the squares: the larger, the less adaptive")

    def init(self, start: Tensor, population: Population) -> Server:
        return Server(start.clone(), kept={"m": torch.zeros_like(start), "v": torch.full_like(start, self.tau**2)})

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        change, m, v = weighted_mean(reports), server.kept["m"], server.kept["v"]
        if self.optimizer == "momentum":
            m = self.beta1 * m + change
            return server.next(server.parameters + self.server_rate * m, m=m)
        beta1 = 0.0 if self.optimizer == "adagrad" else self.beta1
        m, square = beta1 * m + (1 - beta1) * change, change**2
        if self.optimizer == "adagrad":
            v = v + square
        elif self.optimizer == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        return server.next(server.parameters + self.server_rate * m / (v.sqrt() + self.tau), m=m, v=v)
