"""FC2: a cluster for training with a parameter server within a budget, found by few probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from laconic.cluster.cost.instances import InstanceType
from laconic.errors import ClusterError
from laconic.registry import technique

Probe = Callable[[InstanceType, InstanceType, int], float]


class Recommended(NamedTuple):
    """A cluster to rent.

    - `server`: the kind of the parameter server.
    - `worker`: the kind of the workers.
    - `workers`: how many.
    - `price_per_hour`: of all of them.
    - `throughput`: that was measured.
    - `probes`: how many clusters were tried.
    """

    server: InstanceType
    worker: InstanceType
    workers: int
    price_per_hour: float
    throughput: float
    probes: int


@technique(
    "fc2",
    axis="cluster",
    paper="Ta, Cluster Computing 22, 2019",
    why_no_word="It chooses what to rent for a job with parameter servers, which then trains as `bsp / none / ps`.",
)
def recommend(kinds: Sequence[InstanceType], budget: float, probe: Probe, most: int = 10) -> Recommended:
    """Return a cluster of one server and equal workers within a budget, without knowing what is trained.

    The server is of the kind with the most bandwidth with which the budget still pays a worker, since it is what all
    workers wait for; of two, the cheaper. A worker costs at least half as much as the server where that can be
    paid: small ones would be many, and the server has to send to each. From one worker of the kind that promises most
    for its price the number is scaled out, by steps that double while throughput for the price rises and shrink when it
    does not; then so is the second kind, from as many as are as fast together. Every step is a probe, and what has the
    most throughput for its price is kept. The paper's own rule is known by its purpose only: this is a reading of it.

    - `kinds`: the catalogue.
    - `budget`: the price of an hour that may be spent.
    - `probe`: runs a cluster of a server's kind, a workers' kind and a number of workers for a short while, and returns
      samples a second.
    - `most`: the probes that may be made.
    """
    cheapest = min(kind.price_per_hour for kind in kinds)
    servers = [kind for kind in kinds if kind.price_per_hour + cheapest <= budget]
    if not servers:
        raise ClusterError(
            f"a budget of {budget:g} an hour pays no server and worker; the cheapest cost {2 * cheapest:g}"
        )
    server = max(servers, key=lambda kind: (kind.bytes_per_second, -kind.price_per_hour))
    return _ScaleOpt(server, budget, probe, most).run(kinds)


class _ScaleOpt:
    def __init__(self, server: InstanceType, budget: float, probe: Probe, most: int) -> None:
        self.server, self.budget, self.probe, self.most = server, budget, probe, most
        self.tried: dict[tuple[str, int], Recommended] = {}

    def affordable(self, kind: InstanceType) -> int:
        """Return how many workers of a kind the budget pays beside the server."""
        return int((self.budget - self.server.price_per_hour) / kind.price_per_hour + 1e-9)

    def value(self, kind: InstanceType, workers: int) -> float:
        """Return samples an hour for what an hour costs; 0 where it cannot be tried any more."""
        key = kind.name, workers
        if key not in self.tried:
            if len(self.tried) >= self.most:
                return 0.0
            price = self.server.price_per_hour + workers * kind.price_per_hour
            found = self.probe(self.server, kind, workers)
            self.tried[key] = Recommended(self.server, kind, workers, price, found, 0)
        done = self.tried[key]
        return done.throughput / done.price_per_hour

    def run(self, kinds: Sequence[InstanceType]) -> Recommended:
        kinds = [kind for kind in kinds if self.affordable(kind)]
        alike = [kind for kind in kinds if 2 * kind.price_per_hour >= self.server.price_per_hour] or kinds
        by_worth = sorted(alike, key=lambda kind: -kind.flops / kind.price_per_hour)
        self.value(by_worth[0], 1)
        for kind in by_worth[:2]:
            best = self.best()
            self.out(kind, max(round(best.workers * best.worker.flops / kind.flops), 1))
        return self.best()._replace(probes=len(self.tried))

    def best(self) -> Recommended:
        """Return what had the most throughput for its price."""
        return max(self.tried.values(), key=lambda one: (one.throughput / one.price_per_hour, -one.price_per_hour))

    def out(self, kind: InstanceType, workers: int) -> None:
        """Try more workers of a kind, and fewer, as long as it pays."""
        step, limit = 1, self.affordable(kind)
        if not self.value(kind, min(workers, limit)):
            return
        workers = min(workers, limit)
        while step:
            more = min(workers + step, limit)
            if more > workers and self.value(kind, more) > self.value(kind, workers):
                workers, step = more, 2 * step
            else:
                step //= 4 if step > 2 else 2
        while workers > 1 and self.value(kind, workers - 1) > self.value(kind, workers):
            workers -= 1
