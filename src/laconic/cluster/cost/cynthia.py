"""Cynthia: the cheapest workers and parameter servers with which a job reaches a loss in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from laconic.cluster.cost.instances import InstanceType
from laconic.errors import ClusterError
from laconic.registry import technique


@dataclass(frozen=True)
class ServedJob:
    """A job that trains with parameter servers, as one short run has profiled it.

    - `flops`: operations of an iteration, of the whole batch where workers are synchronous, of one worker otherwise.
    - `parameter_bytes`: what a worker sends in an iteration, and receives again.
    - `loss_fall`, `loss_floor`: the loss after s iterations is fall / s + floor; asynchronously, with n workers, the
      fall counts √n times.
    - `synchronous`: whether workers wait for each other in every iteration.
    """

    flops: float
    parameter_bytes: float
    loss_fall: float
    loss_floor: float
    synchronous: bool = True

    def iterations(self, goal: float, workers: int) -> float:
        """Return the iterations to a loss, those of all workers together where they are asynchronous.

        - `goal`: the loss.
        - `workers`: how many.
        """
        if goal <= self.loss_floor:
            raise ClusterError(f"a loss of {goal:g} is never reached: it falls to {self.loss_floor:g} at best")
        fall = self.loss_fall if self.synchronous else self.loss_fall * math.sqrt(workers)
        return fall / (goal - self.loss_floor)

    def compute_seconds(self, kind: InstanceType, workers: int) -> float:
        """Return an iteration's time to compute.

        - `kind`: of the workers.
        - `workers`: how many share a batch.
        """
        return self.flops / kind.flops / (workers if self.synchronous else 1)

    def transfer_seconds(self, kind: InstanceType, workers: int, servers: int) -> float:
        """Return an iteration's time to send gradients and receive parameters, at what the servers can give to each
        worker: their networks and their processors are shared by all.

        - `kind`: of workers and servers.
        - `workers`, `servers`: how many.
        """
        return 2 * self.parameter_bytes / min(served_to_each(kind, workers, servers), kind.bytes_per_second)

    def iteration_seconds(self, kind: InstanceType, workers: int, servers: int) -> float:
        """Return an iteration's time: synchronous workers overlap computing and sending, asynchronous ones do not.

        - `kind`: of workers and servers.
        - `workers`, `servers`: how many.
        """
        compute, transfer = self.compute_seconds(kind, workers), self.transfer_seconds(kind, workers, servers)
        return max(compute, transfer) if self.synchronous else compute + transfer

    def seconds(self, goal: float, kind: InstanceType, workers: int, servers: int) -> float:
        """Return the time to a loss.

        - `goal`: the loss.
        - `kind`: of workers and servers.
        - `workers`, `servers`: how many.
        """
        each = 1 if self.synchronous else workers
        return self.iterations(goal, workers) / each * self.iteration_seconds(kind, workers, servers)


def served_to_each(kind: InstanceType, workers: int, servers: int) -> float:
    """Return the bytes a second that servers can give to each worker.

    - `kind`: of the servers.
    - `workers`, `servers`: how many.
    """
    return servers * min(kind.bytes_per_second, kind.server_bytes_per_second) / workers


class Provision(NamedTuple):
    """A cluster to rent.

    - `cost`: of the whole training.
    - `seconds`: that it takes.
    - `kind`: of all machines.
    - `workers`, `servers`: how many.
    """

    cost: float
    seconds: float
    kind: InstanceType
    workers: int
    servers: int


def provision(job: ServedJob, goal: float, kind: InstanceType, workers: int, servers: int) -> Provision:
    """Return what a cluster costs until the loss is reached.

    - `job`: what is trained.
    - `goal`: the loss.
    - `kind`: of all machines.
    - `workers`, `servers`: how many.
    """
    seconds = job.seconds(goal, kind, workers, servers)
    cost = kind.price_per_hour * (workers + servers) * seconds / 3600
    return Provision(cost, seconds, kind, workers, servers)


@technique(
    "cynthia",
    axis="cluster",
    paper="Zheng, Xu, Chen, Zhou, Liu, ICPP 2019",
    why_no_word="It chooses what to rent for a job with parameter servers, which then trains as `bsp / none / ps`.",
)
def cheapest(
    job: ServedJob, goal: float, seconds: float, kinds: Sequence[InstanceType], most: int = 64
) -> Provision | None:
    """Return the cheapest kind and numbers of workers and servers that reach a loss in time, or None.

    Few numbers are tried: at least as many workers as would do if they scaled perfectly, at most as many as the servers
    can feed while computing still takes longer than sending, since beyond that more workers take no less time; and no
    more servers than workers can keep busy. Reading chosen: larger numbers of servers are tried even where smaller ones
    meet the goal, as they may be cheaper.

    - `job`: what is trained.
    - `goal`: the loss.
    - `seconds`: the time that it may take.
    - `kinds`: the catalogue.
    - `most`: the most workers, and the most servers, that can be rented.
    """
    best: Provision | None = None
    for kind in kinds:
        demand = kind.bytes_per_second / min(kind.bytes_per_second, kind.server_bytes_per_second)
        perfect = job.iterations(goal, 1) * job.compute_seconds(kind, 1) / seconds
        least = max(math.ceil((perfect if job.synchronous else perfect**2) * (1 - 1e-12)), 1)
        for servers in range(1, min(most, math.ceil(most * demand)) + 1):
            for workers in range(least, most + 1):
                found = provision(job, goal, kind, workers, servers)
                if found.seconds <= seconds and (best is None or found[:2] < best[:2]):
                    best = found
                crowded = served_to_each(kind, workers, servers) <= kind.bytes_per_second
                if crowded and job.transfer_seconds(kind, workers, servers) >= job.compute_seconds(kind, workers):
                    break  # the servers are the bottleneck: more workers do not help
    return best
