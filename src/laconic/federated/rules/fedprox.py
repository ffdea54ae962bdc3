"""FedProx: clients are held near the model that they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, held_near
from laconic.federated.rule import Rule, Sent
from laconic.registry import knob, technique


@technique("fedprox", paper="Li et al., MLSys 2020")
@dataclass(frozen=True)
class FedProx(Rule):
    """FedAvg whose clients minimise their own loss plus μ/2 ‖w − w_t‖², so that they do not move far from the model w_t
    that they were sent, however much they train.

    The paper lets clients do as much work as they manage; a population's deadline and speeds decide that here. The
    server weighs by samples, as in FedAvg, where the paper samples clients by their size and averages evenly.
    """

    pools: ClassVar[Literal["no", "samples", "alike"]] = "samples"

    mu: float = knob(0.01, low=0.0, doc="μ, how strongly clients are held near the model they were sent")

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        return Sent({"change": local.descend(start, held_near(start, self.mu)).end - start})
