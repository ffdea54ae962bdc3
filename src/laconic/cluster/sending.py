"""Jobs that compute and then send over the network between hosts, in each of their iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.contention import Running
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.errors import ClusterError
from laconic.network.flow import Flow
from laconic.network.graph import Graph
from laconic.network.max_min import fill

PATTERNS = ("ring", "star")
Circuits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sending:
    """A job of iterations: each worker computes, and then all exchange the model. What stays on a host takes no time.

    - `work`: iterations.
    - `compute`: seconds of one, before anything is sent.
    - `nbytes`: of the model.
    - `pattern`: `ring` for an all-reduce along the workers in their order, `star` for a parameter server beside the
      first of them.
    - `share`: what of each GPU it can use; on less of it, computing takes in proportion longer.
    - `split_over`: the workers among whom the batch of an iteration is split when it computes for so long, so that more
      of them compute for less; 0: every worker has a batch of its own.
    - `layers`: how many equal layers the model has.
    """

    work: float
    compute: float
    nbytes: float
    pattern: str = "ring"
    share: float = 1.0
    split_over: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ClusterError(f'a job does not send in a "{self.pattern}"; write one of {", ".join(PATTERNS)}')
        if not self.compute > 0 or self.nbytes < 0 or self.layers < 1 or self.split_over < 0:
            raise ClusterError("an iteration computes for some time and sends no less than nothing, in layers")

    def loads(self, grant: Grant, cluster: Cluster) -> NDArray[np.float64]:
        """Return the bytes of an iteration on every link of the cluster's network.

        - `grant`: where its workers are.
        - `cluster`: the hosts and their network.
        """
        if cluster.network is None:
            return np.zeros(0)
        return self.nbytes * _loads(cluster.network, *self._layout(grant, cluster))[0]

    def seconds(self, grant: Grant, cluster: Cluster) -> tuple[float, float]:
        """Return what computing and sending take in an iteration of the job alone.

        - `grant`: where its workers are.
        - `cluster`: the hosts and their network.
        """
        computing = self.compute * max(1.0, self.share / min(slot.share for slot in grant.slots))
        if self.split_over:
            computing *= self.split_over / len(grant.slots)
        if cluster.network is None or len(grant.by_host) == 1:
            return computing, 0.0
        loads, optical = _loads(cluster.network, *self._layout(grant, cluster))
        sending = float((self.nbytes * loads / cluster.network.capacities).max())
        if optical:
            sending = max(sending, self.nbytes * optical * 8 / cluster.circuit_bits_per_second)
        return computing, sending

    def _layout(self, grant: Grant, cluster: Cluster) -> tuple[str, tuple[int, ...], tuple[str, ...], Circuits]:
        workers = tuple(slot.host for slot in grant.slots)
        racks = tuple(cluster.hosts[host].rack for host in workers) if grant.circuits else ()
        return self.pattern, workers, racks, grant.circuits

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, beside
        computing, sending = self.seconds(grant, cluster)
        return Rate(1 / (computing + sending), self.work, sending / (computing + sending))


def flow(pattern: str, workers: Sequence[int], nbytes: float = 1.0) -> Flow:
    """Return what an iteration sends, from which host to which.

    - `pattern`: of the job.
    - `workers`: the host of each worker.
    - `nbytes`: of the model.
    """
    hosts = np.array(workers, dtype=np.int64)
    if pattern == "ring":
        sources, destinations = hosts, np.roll(hosts, -1)
        each = 2 * nbytes * (len(hosts) - 1) / len(hosts)
    else:
        server, each = np.full(len(hosts), hosts[0]), nbytes
        sources, destinations = np.concatenate([hosts, server]), np.concatenate([server, hosts])
    far = sources != destinations
    return Flow(sources[far], destinations[far], np.full(int(far.sum()), each), 1)


@lru_cache(4096)
def _loads(
    network: Graph, pattern: str, workers: tuple[int, ...], racks: tuple[str, ...], circuits: Circuits
) -> tuple[NDArray[np.float64], float]:
    """Return what each link carries for a byte of the model, and what the fullest circuit does: what goes between racks
    that a circuit joins passes no links but those of its two hosts."""
    sent = flow(pattern, workers)
    routes = network.routes(sent.sources, sent.destinations)
    rack_of, carried = dict(zip(workers, racks, strict=False)), dict[tuple[str, str], float]()
    for row, (source, destination) in enumerate(zip(sent.sources.tolist(), sent.destinations.tolist(), strict=True)):
        ends = (rack_of.get(source, ""), rack_of.get(destination, ""))
        if ends in circuits or ends[::-1] in circuits:
            carried[ends] = carried.get(ends, 0.0) + float(sent.nbytes[row])
            used = np.flatnonzero(routes.links[row] >= 0)
            routes.links[row, used[1:-1]] = -1
    return routes.load_bytes(sent.nbytes, len(network.capacities)), max(carried.values(), default=0.0)


Iteration = Callable[[Job, Grant, Cluster], float]
"""The seconds of an iteration of a job that sends, alone on its slots, where computing and sending overlap somehow."""

Priorities = Callable[[NDArray[np.float64]], Sequence[Sequence[int]]]
"""Groups of rows, the most urgent first, from the seconds that each row has still to send over each link."""


@dataclass(frozen=True)
class OnLinks:
    """Jobs whose messages go over the same links share them max-min fairly, in bytes a second over whole iterations: a
    job is as fast as alone until a link is full, as if others sent while it computes. Where bursts coincide in truth,
    jobs are slower than here.

    - `iteration`: how long an iteration takes alone; none: it computes and then sends.
    - `priorities`: which jobs get what they can use before others get what is left; none: all share fairly.
    """

    iteration: Iteration | None = None
    priorities: Priorities | None = None

    def rates(self, running: Sequence[Running], cluster: Cluster) -> list[Rate]:
        alone = [self.alone(one, cluster) for one in running]
        senders = [
            (number, progress, progress.loads(grant, cluster))
            for number, ((job, grant, _), rate) in enumerate(zip(running, alone, strict=True))
            if isinstance(progress := job.progress, Sending) and progress.seconds(grant, cluster)[1] > 0
        ]
        if len(senders) < 2 or cluster.network is None:
            return alone
        loads = np.array([load for *_, load in senders])
        heaviest = loads.max(axis=1)
        fastest = np.array([alone[number].speed for number, *_ in senders])
        used = loads.any(axis=0)
        weights = np.hstack([loads[:, used] / heaviest[:, None], np.eye(len(senders))])
        room = np.concatenate([cluster.network.capacities[used], fastest * heaviest])
        levels = np.zeros(len(senders))
        nothing = room * 1e-12
        for group in self.groups([running[number] for number, *_ in senders], loads / cluster.network.capacities):
            levels += fill(weights, room, np.isin(np.arange(len(senders)), group))
            room[room < nothing] = 0.0  # rounding errors of full links
        for (number, *_), speed in zip(senders, (levels / heaviest).tolist(), strict=True):
            before = alone[number]
            if speed < before.speed:
                computing = (1 - before.communicating) / before.speed
                alone[number] = Rate(speed, before.until, 1 - computing * speed)
        return alone

    def alone(self, running: Running, cluster: Cluster) -> Rate:
        """Return the rate of a job beside which nobody sends.

        - `running`: the job.
        - `cluster`: whose slots it holds.
        """
        job, grant, done = running
        rate = job.progress.rate(done, grant, cluster, ())
        if self.iteration is None or not isinstance(job.progress, Sending) or not rate.communicating:
            return rate
        seconds = self.iteration(job, grant, cluster)
        return Rate(1 / seconds, rate.until, 1 - job.progress.seconds(grant, cluster)[0] / seconds)

    def groups(self, senders: Sequence[Running], seconds: NDArray[np.float64]) -> Sequence[Sequence[int]]:
        """Return the jobs, by their places, in groups of which the first goes before the next.

        - `senders`: the jobs that send.
        - `seconds`: what an iteration of each takes over each link.
        """
        if self.priorities is None:
            return [range(len(senders))]
        ahead = np.array([max(job.progress.work - done, 0.0) for job, _, done in senders])
        return self.priorities(seconds * ahead[:, None])
