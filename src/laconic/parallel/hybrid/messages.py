"""What messages take: all-reduces among tensor-parallel and data-parallel ranks, and sends between stages."""

from __future__ import annotations

import numpy as np

from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.runs import Array, Runs

_HALF = 2.0  # bytes of an activation


def rates(cluster: Cluster, constants: Constants) -> tuple[float, float]:
    """Return the bytes a second of a GPU inside its host, and between hosts."""
    inside = cluster.link_bytes_per_second * constants.link_share
    return inside, cluster.network_bytes_per_second * constants.network_share


def all_reduce_seconds(nbytes: Array, ranks: Array, near: Array, cluster: Cluster, constants: Constants) -> Array:
    """Return the seconds of an all-reduce among so many ranks, of which `near` share a host.

    First inside each host, then between hosts, where each GPU carries its part over its own share of the network.
    """
    inside, between = rates(cluster, constants)
    near = np.minimum(ranks, np.maximum(near, 1.0))
    hosts = ranks / near
    return 2 * (near - 1) / near * nbytes / inside + 2 * (hosts - 1) / hosts * nbytes / near / between


def tensor_seconds(runs: Runs, cluster: Cluster, constants: Constants, values: Array | None = None) -> Array:
    """Return the seconds of one all-reduce among tensor-parallel ranks; of a microbatch's activations, if not told."""
    nbytes = _HALF * (runs.tokens * runs.hidden if values is None else values)
    near = np.minimum(runs.tensor, cluster.per_host)
    moved = all_reduce_seconds(nbytes, runs.tensor, near, cluster, constants)
    return moved + constants.collective_seconds * np.log2(runs.tensor)


def stages_cross_hosts(runs: Runs, cluster: Cluster) -> Array:
    """Return whether neighbouring stages are on different hosts: 1 or 0."""
    return np.asarray(runs.pipeline * runs.tensor * runs.data > cluster.per_host, float)


def send_seconds(runs: Runs, cluster: Cluster, constants: Constants) -> Array:
    """Return the seconds in which a microbatch's activations get from one stage to the next, or their gradients back.

    With `split_sends` each tensor-parallel rank sends a part over its own adapter and gathers the others' on arrival
    (the scatter/gather optimisation of SC 2021); without, each sends all of it.
    """
    inside, between = rates(cluster, constants)
    nbytes = _HALF * runs.tokens * runs.hidden
    parts = np.where(runs.split_sends > 0, runs.tensor, 1.0)
    gathered = nbytes * (parts - 1) / parts / inside
    rate = np.where(stages_cross_hosts(runs, cluster) > 0, between, inside)
    return np.where(runs.pipeline > 1, nbytes / parts / rate + gathered + constants.collective_seconds, 0.0)


def gradient_seconds(runs: Runs, parameters: Array, cluster: Cluster, constants: Constants) -> Array:
    """Return the seconds in which data-parallel ranks sum the gradients of a stage's parameters.

    A sharded optimizer's reduce-scatter and all-gather move what an all-reduce moves.
    """
    near = np.minimum(runs.data, np.maximum(cluster.per_host / runs.tensor, 1.0))
    return all_reduce_seconds(runs.gradient_bytes * parameters, runs.data, near, cluster, constants)


def tied_seconds(runs: Runs, cluster: Cluster, constants: Constants) -> Array:
    """Return the seconds in which the first and the last stage sum the gradients of the embedding that they share."""
    inside, between = rates(cluster, constants)
    rate = np.where(stages_cross_hosts(runs, cluster) > 0, between, inside)
    return np.where(runs.pipeline > 1, runs.sum_bytes * runs.embedding_parameters / rate, 0.0)
