"""FedCH: clusters of clients of like speed train in rounds of their own, and the server merges whichever is through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from laconic.errors import StrategyError
from laconic.federated.population import Population
from laconic.federated.rule import Cluster, Report, Rule, Server, weighted_mean
from laconic.registry import knob, technique


@technique("fedch", paper="Wang et al., IEEE Transactions on Mobile Computing 2023")
@dataclass(frozen=True)
class FedCH(Rule):
    """Rounds within clusters, and none between them: clients that take about as long for an epoch and its messages form
    a cluster, whose head averages their models by samples and relays the mean w_k; the server merges it at once,
    w ← (1 - a_s) w + a_s w_k with a_s = a/√(1 + s) for a model that is s versions old, and the cluster goes on from w.

    One cluster with a = 1 is FedAvg of all clients; as many clusters as clients merge single models as they come. What
    reaches the server are the heads' models: one for each step.

    Readings chosen: clients are sorted by their times and cut into clusters of equal size, the head is the one with the
    fastest link, and a_s falls as above; the paper's own could not be established. Neither could the bound by which it
    chooses the number of clusters: here that is a knob. Clients send what they changed, and the head adds it to the
    model that the cluster began with. All clients take part; `clients` says nothing here.
    """

    clustered: ClassVar[bool] = True

    clusters: int = knob(5, low=1, doc="clusters of clients")
    mixing: float = knob(1.0, above=0.0, high=1.0, doc="a, how much a model counts that is not out of date")

    def init(self, start: Tensor, population: Population) -> Server:
        if self.clusters > len(population):
            raise StrategyError(
                f"a cluster has at least one client, and there are {len(population)}; write {self.name}(clusters="
                f"{len(population)}), or fewer"
            )
        return super().init(start, population)

    def clusters_of(self, population: Population, nbytes: int) -> list[Cluster]:
        speeds = [
            population.train_seconds(c, self.epochs * len(population.shards[c]))
            + population.send_seconds(c, nbytes, down=True)
            + population.send_seconds(c, nbytes, down=False)
            for c in range(len(population))
        ]
        groups = np.array_split(np.argsort(speeds, kind="stable"), self.clusters)
        up = np.asarray(population.up_bits)
        return [Cluster(tuple(sorted(map(int, group))), int(group[np.argmax(up[group])])) for group in groups]

    def aggregate(self, server: Server, reports: Sequence[Report]) -> Server:
        share = self.mixing * (1 + server.version - reports[0].version) ** -0.5
        mean = reports[0].received["parameters"] + weighted_mean(reports)
        return server.next(server.parameters + share * (mean - server.parameters))
