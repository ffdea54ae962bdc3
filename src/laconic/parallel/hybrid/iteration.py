"""What an iteration takes: microbatches through the pipeline, the sum of gradients, and the optimizer's step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.layer import embedding_seconds, head_seconds, layer_seconds
from laconic.parallel.hybrid.messages import gradient_seconds, send_seconds, tied_seconds
from laconic.parallel.hybrid.runs import Array, Run, Runs

_OPTIMIZER_BYTES = 40  # moved by Adam for each parameter: gradient, exact weight and two states, some of them twice


@dataclass(frozen=True)
class Iteration:
    """The seconds of iterations by part; `pipeline` holds `bubble`, in which the slowest stage waits."""

    pipeline: Array
    bubble: Array
    gradients: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        return self.pipeline + self.gradients + self.optimizer


def priced(runs: Runs, cluster: Cluster, constants: Constants) -> Iteration:
    """Return what iterations take.

    The slowest stage takes its time for every microbatch; before and after, one microbatch passes the other stages,
    which interleaving divides by the chunks: for equal stages (m + (p-1)/v)(tf + tb), as in SC 2021.
    """
    layer = layer_seconds(runs, cluster, constants)
    head, embedding = head_seconds(runs, cluster, constants), embedding_seconds(runs, cluster, constants)
    send = send_seconds(runs, cluster, constants)
    own_layers, count, single = runs.stage_layers, runs.microbatches, runs.pipeline == 1
    computing = own_layers * (layer.forward + layer.backward)
    sending = np.where(runs.sends_in_turn > 0, 4, 2) * send * runs.chunks
    summing = np.where(count > 1, _summing(runs, cluster, constants), 0.0)
    slowest = computing + sending + summing + np.where(single, head + embedding, np.maximum(head, embedding))
    whole = runs.pipeline * computing + head + embedding + (runs.pipeline - 1) * sending + summing
    bubble = np.maximum(whole - slowest, 0.0) / runs.chunks
    parameters = own_layers * runs.layer_parameters + runs.embedding_parameters
    hidden = np.where(runs.overlapped > 0, own_layers * layer.backward, 0.0)
    gradients = np.maximum(gradient_seconds(runs, parameters, cluster, constants) - hidden, 0.0)
    return Iteration(
        count * slowest + bubble,
        bubble,
        gradients + tied_seconds(runs, cluster, constants),
        _step(runs, parameters, cluster, constants),
    )


def iteration_seconds(run: Run, cluster: Cluster, constants: Constants) -> float:
    """Return what one iteration takes."""
    return float(priced(Runs.of([run]), cluster, constants).total[0])


def _summing(runs: Runs, cluster: Cluster, constants: Constants) -> Array:
    """Return what adding a microbatch's gradients to those of earlier ones takes: two reads and a write."""
    moved = (2 + 2 * runs.sum_bytes) * runs.stage_layers * runs.layer_parameters
    summing: Array = moved / (cluster.memory_bytes_per_second * constants.memory_share)
    return summing


def _step(runs: Runs, parameters: Array, cluster: Cluster, constants: Constants) -> Array:
    owners = np.where(runs.sharded > 0, runs.data, 1.0)
    moved = _OPTIMIZER_BYTES * parameters / owners
    return constants.step_seconds + moved / (cluster.memory_bytes_per_second * constants.memory_share)
