"""Jobs whose workers send to each other, over near or far links, and are slowed by whoever is on the same hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.gpu_distance import distance
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class Coupled:
    """A job that takes so many seconds alone on GPUs that are next to each other; messages take in proportion to the
    distance that they go, and every job beside it takes its toll.

    - `work`: the seconds.
    - `messages`: the share of them in which it sends.
    - `edges`: how much each worker sends to each, as rows of a symmetric matrix; none given: all as much.
    - `slowdowns`: by the kind of another job, what one such on the same hosts adds to the time, as a share of it: a
      profile of pairs.
    - `least_utility`: what its owner asks of a placement at least, from 0 to 1.
    """

    work: float
    messages: float = 0.0
    edges: tuple[tuple[float, ...], ...] = ()
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    least_utility: float = 0.0

    def weights(self, workers: int) -> NDArray[np.float64]:
        """Return the weight of the edge between every two workers.

        - `workers`: how many.
        """
        return np.array(self.edges, dtype=float) if self.edges else np.ones((workers, workers)) - np.eye(workers)

    def mean_distance(self, grant: Grant, cluster: Cluster) -> float:
        """Return how far its messages go on the mean, 1 where there are none.

        - `grant`: where its workers are, in their order.
        - `cluster`: whose slots these are.
        """
        weights = self.weights(len(grant.slots))
        if not weights.any():
            return 1.0
        places = [(slot.host, slot.device) for slot in grant.slots]
        far = np.array([[distance(cluster, one, other) for other in places] for one in places])
        return float((weights * far).sum() / weights.sum())

    def slowdown(self, beside: Sequence[Job]) -> float:
        """Return what others add to its time, as a share of it.

        - `beside`: the jobs on the same hosts.
        """
        return sum(self.slowdowns.get(other.kind, 0.0) for other in beside)

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done
        sending = self.messages * self.mean_distance(grant, cluster)
        seconds = (1 - self.messages + sending) * (1 + self.slowdown(beside))
        share = min(slot.share for slot in grant.slots)
        return Rate(share / seconds, self.work, sending * (1 + self.slowdown(beside)) / seconds)
