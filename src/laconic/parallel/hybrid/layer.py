"""What a transformer layer computes: its matrix products, its elementwise operations, and the host that starts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.messages import tensor_seconds
from laconic.parallel.hybrid.runs import FULL, SELECTIVE, Array, Runs

_TILE_ROWS, _TILE_COLUMNS = 128, 256  # of the result that one multiprocessor computes at a time, in NVIDIA's kernels
_HALF_WAVE = 54  # tiles: half of an A100's 108 multiprocessors are idle in the last round, in the mean
_FORWARD_LAUNCHES, _BACKWARD_LAUNCHES = 30, 60  # operations of a layer that a host starts, as in Megatron-LM
_SHARPNESS = 4  # the power with which the longer of the host's and the GPU's time wins


@dataclass(frozen=True)
class LayerSeconds:
    """The seconds of one layer and microbatch, messages among tensor-parallel ranks included."""

    forward: Array
    backward: Array


def product_seconds(
    rows: Array, columns: Array, inner: Array, cluster: Cluster, constants: Constants, count: Array | float = 1.0
) -> Array:
    """Return the seconds of `count` products of 16-bit matrices at once: (rows × inner) by (inner × columns).

    The longer of computing and moving; the last round of tiles is half empty, which costs small products most.
    """
    tiles = np.ceil(rows / _TILE_ROWS) * np.ceil(columns / _TILE_COLUMNS) * count
    computing = 2 * rows * columns * inner * count / (cluster.operations_per_second * constants.product_share)
    moved = 2 * (rows * inner + inner * columns + rows * columns) * count
    moving = moved / (cluster.memory_bytes_per_second * constants.memory_share)
    return np.maximum(computing * (1 + _HALF_WAVE / tiles), moving)


def layer_seconds(runs: Runs, cluster: Cluster, constants: Constants) -> LayerSeconds:
    """Return what a layer takes: two all-reduces each way, and again in a forward pass that is recomputed.

    The host starts operations while the GPU computes earlier ones: small layers take the host's time.
    """
    forward, backward, attention = _computing(runs, cluster, constants)
    messages = 2 * tensor_seconds(runs, cluster, constants)
    forward, backward = forward + messages, backward + messages
    again = np.where(runs.recompute == FULL, forward, np.where(runs.recompute == SELECTIVE, attention, 0.0))
    started = np.where(runs.recompute == FULL, _FORWARD_LAUNCHES, 0)
    return LayerSeconds(
        _longer(forward, constants.launch_seconds * _FORWARD_LAUNCHES),
        _longer(backward + again, constants.launch_seconds * (_BACKWARD_LAUNCHES + started)),
    )


def head_seconds(runs: Runs, cluster: Cluster, constants: Constants) -> Array:
    """Return what the output's scores and the loss take, forward and backward; they are divided as the words are."""
    tokens, hidden, words = runs.tokens, runs.hidden, runs.vocabulary / runs.tensor
    products = (
        product_seconds(tokens, words, hidden, cluster, constants)
        + product_seconds(tokens, hidden, words, cluster, constants)
        + product_seconds(hidden, words, tokens, cluster, constants)
    )
    moved = 30 * tokens * words  # bytes: 16-bit scores, their 32-bit copies, the loss's passes and its gradient
    messages = tensor_seconds(runs, cluster, constants) + 3 * tensor_seconds(runs, cluster, constants, 2 * tokens)
    return products + moved / (cluster.memory_bytes_per_second * constants.memory_share) + messages


def embedding_seconds(runs: Runs, cluster: Cluster, constants: Constants) -> Array:
    """Return what looking words up and summing their gradients takes."""
    moved = 20 * runs.tokens * runs.hidden
    moving = moved / (cluster.memory_bytes_per_second * constants.memory_share)
    return moving + tensor_seconds(runs, cluster, constants)


def _computing(runs: Runs, cluster: Cluster, constants: Constants) -> tuple[Array, Array, Array]:
    """Return what a GPU computes forward and backward, and of forward what is between queries and values."""
    tokens, hidden, part = runs.tokens, runs.hidden, runs.hidden / runs.tensor
    width, count = hidden / runs.heads, runs.microbatch * runs.heads / runs.tensor

    def product(rows: Array, columns: Array, inner: Array, count: Array | float = 1.0) -> Array:
        return product_seconds(rows, columns, inner, cluster, constants, count)

    sequence = runs.sequence
    scores = product(sequence, sequence, width, count) + product(sequence, width, sequence, count)
    shapes = ((3 * part, hidden), (hidden, part), (4 * part, hidden), (hidden, 4 * part))  # (outputs, inputs)
    forward = sum((product(tokens, out, into) for out, into in shapes), scores)
    backward = sum((product(tokens, into, out) + product(into, out, tokens) for out, into in shapes), 2 * scores)
    rate = cluster.memory_bytes_per_second * constants.memory_share
    pairs = count * sequence**2
    # bytes by value: normalizations, dropout with bias and sum; GELU, transposes; softmax and dropout of the scores
    inside = 9 * pairs / rate
    forward = forward + (22 * tokens * hidden + 36 * tokens * part) / rate + inside
    backward = backward + (26 * tokens * hidden + 44 * tokens * part + 11 * pairs) / rate
    return forward, backward, scores + inside


def _longer(gpu: Array, host: Array | float) -> Array:
    """Return a smooth maximum of two times: neither hides the other wholly where they are alike."""
    longer: Array = (gpu**_SHARPNESS + np.asarray(host, float) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return longer
