"""A Ray cluster of several nodes on this machine alone, a node for each host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes

from laconic.cluster.hosts import Cluster
from laconic.cluster.ray.nodes import resources

_SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}  # jobs send each other nothing through Ray


@contextmanager
def local_nodes(cluster: Cluster, settings: Mapping[str, Any] | None = None) -> Iterator[Nodes]:
    """Start the nodes, connect this process to them, and stop them in the end.

    - `cluster`: the hosts.
    - `settings`: of Ray's own system, such as how soon a node that does not answer is lost.
    """
    nodes = Nodes(
        initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": dict(settings or {}), **_SMALL}
    )
    try:
        for host in cluster.hosts:
            nodes.add_node(num_cpus=host.gpus, resources=resources(host), **_SMALL)
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
