"""Jobs whose speed beside another on the same GPUs was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Paired:
    """A job with measured speeds alone and beside one job of each kind. Its share of a device is what the books say:
    while nobody else is there, it runs as alone, and otherwise as was measured.

    - `work`: its steps, or seconds alone.
    - `alone`: work a second of its whole gang, by type of GPU.
    - `beside`: the same beside another gang, by type of GPU and by the kind of that; a kind that was not measured, such
      as one that does not fit into the memory, lets it do nothing.
    """

    work: float
    alone: Mapping[str, float]
    beside: Mapping[str, Mapping[str, float]]

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done
        if len(beside) > 1:
            raise ClusterError("the speeds of jobs were measured in pairs; put no more than two on the same GPUs")
        types = {cluster.hosts[host].gpu for host, _ in grant.by_host}
        if beside:
            return Rate(min(self.beside.get(gpu, {}).get(beside[0].kind, 0.0) for gpu in types), self.work)
        return Rate(min(self.alone.get(gpu, 0.0) for gpu in types), self.work)
