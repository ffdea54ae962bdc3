"""FedAvg: clients train by themselves, and the server averages their models by their numbers of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from laconic.federated.rule import Rule
from laconic.registry import technique


@technique(
    "fedavg",
    aliases=["federated_averaging"],
    paper="McMahan et al., AISTATS 2017",
    evidence="published",
    reproduces="the order of rounds to a target by local work, on Shakespeare by speaker: FedSGD, E=5, B=10, both; and "
    "that more clients save rounds, twenty of a hundred hardly more than ten",
)
@dataclass(frozen=True)
class FedAvg(Rule):
    """Average what clients have learned: each trains for some epochs, and the server takes the mean of their models,
    weighted by their numbers of samples.

    `fedavg(clients=10, epochs=5, batch=10)` is the paper's C, E and B. With `epochs=1, batch=0` every client does one
    step with all its samples: FedSGD. A client's optimizer keeps nothing between rounds.
    """

    pools: ClassVar[Literal["no", "samples", "alike"]] = "samples"
