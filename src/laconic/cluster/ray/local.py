"""A Ray cluster of several nodes on this machine alone, a node for each host."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.ray.nodes import resources

_SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}  # jobs send each other nothing through Ray
_AGENTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


@contextmanager
def local_nodes(cluster: Cluster, settings: Mapping[str, Any] | None = None) -> Iterator[Nodes]:
    """Start the nodes, connect this process to them, and stop them in the end.

    - `cluster`: the hosts.
    - `settings`: of Ray's own system, such as how soon a node that does not answer is lost.
    """
    head = {"num_cpus": 1, "_system_config": dict(settings or {}), **_SMALL, **_ports()}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    try:
        for host in cluster.hosts:
            add_node(nodes, host)
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def add_node(nodes: Nodes, host: Host) -> Any:
    """Start a node that is a host, and return it as Ray has it.

    - `nodes`: to which it belongs.
    - `host`: the host.
    """
    return nodes.add_node(num_cpus=host.gpus, resources=resources(host), **_SMALL, **_ports())


def _ports() -> dict[str, int]:
    """Return free ports for a node's agents: a node that is not told waits 15 s for them to choose, and dies if the
    machine is so busy that they take longer to start."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in _AGENTS]
        for one in sockets:
            one.bind(("", 0))
        return {name: one.getsockname()[1] for name, one in zip(_AGENTS, sockets, strict=True)}
