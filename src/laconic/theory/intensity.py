"""A model's communication relative to its computation, which predicts how well it scales before anything is run."""

from __future__ import annotations

from laconic.registry import technique
from laconic.theory.values import require
from laconic.values.wire import wire_factor


def server_traffic(workers: int, servers: int = 1) -> float:
    """Return the elements that a server receives and sends per element of the model, from and to every worker."""
    require(workers >= 1 and servers >= 1, f"{workers} workers and {servers} servers: there is one of each at least")
    return 2 * workers / servers


def ring_traffic(workers: int) -> float:
    """Return the elements that a worker sends in a ring all-reduce per element of the model."""
    require(workers >= 1, f"{workers} workers: there is one at least")
    return wire_factor("all_reduce", workers)


def intensity(operations: float, parameters: float) -> float:
    """Return the operations per sample and parameter, which is a constant of the model."""
    require(operations > 0 and parameters > 0, f"{operations:g} operations and {parameters:g} parameters: both are > 0")
    return operations / parameters


@technique(
    "c2c_ratio",
    axis="theory",
    paper="Shi et al., IEEE Network 2020 (arXiv 2005.13247)",
    evidence="published",
    reproduces="order of the best speed-ups on 32 GPUs, 31.6x, 23.2x and 8.2x, from local batches and intensities",
    why_no_word="It is a ratio of a method and its hardware, which says how it scales and sends nothing itself.",
)
def c2c_ratio(batch: int, intensity: float, traffic: float) -> float:
    """Return the elements sent per operation; with the same method and hardware, a smaller ratio scales better.

    `batch` is that of all workers. Only the model's intensity, the batch and the architecture's traffic matter, not the
    size of the model. Reading chosen: intensities as the text prints them, where the survey's BERT-Large has another by
    its operations.
    """
    require(batch >= 1 and intensity > 0, f"a batch of {batch} at intensity {intensity:g}: both are positive")
    return traffic / (batch * intensity)


def bsp_speed_up(serial_seconds: float, communication_seconds: float, workers: int) -> float:
    """Return the speed-up of workers that share the serial time, then communicate; at most serial / communication."""
    require(workers >= 1, f"{workers} workers: there is one at least")
    require(serial_seconds > 0 and communication_seconds >= 0, "computing takes time, and communication none at least")
    return serial_seconds / (serial_seconds / workers + communication_seconds)
