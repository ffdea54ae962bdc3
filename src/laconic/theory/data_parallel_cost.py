"""What plain data parallelism of a very large model would send."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.registry import technique


@dataclass(frozen=True)
class SynchronisationCost:
    """The cost of one step's synchronisation, in the mean over steps.

    - `total_parameters`: exchanged in all, where each GPU sends one copy of the model.
    - `copy_bytes`, `copy_seconds`: of one GPU that sends one copy, as the survey counts.
    - `ring_bytes`, `ring_seconds`: of one GPU in a ring all-reduce, which sends 2(N-1)/N copies.
    """

    total_parameters: float
    copy_bytes: float
    copy_seconds: float
    ring_bytes: float
    ring_seconds: float


@technique(
    "llm_data_parallel_cost",
    axis="theory",
    paper="Liang et al., arXiv 2404.06114 (a survey), section VII-A, after Ryabinin et al., SWARM, ICML 2023",
    evidence="published",
    reproduces="1600 s a synchronisation of 100 billion parameters at 1 Gb/s, and 0.22 s at 900 GB/s",
    why_no_word="It is arithmetic about a network; `laconic plan` prices the sentences that would send less.",
)
def data_parallel_cost(
    parameters: float, gpus: int, bytes_per_second: float, bits: float = 16, period: int = 1
) -> SynchronisationCost:
    """Return what it costs to synchronise a model by data parallelism alone.

    - `parameters`: of the model, all of which each of the `gpus` holds.
    - `bytes_per_second`: of each GPU's link.
    - `bits`: sent for each parameter.
    - `period`: steps between synchronisations (local SGD), by which the mean cost of a step is divided.
    """
    if parameters < 0 or gpus < 1 or min(bytes_per_second, bits) <= 0 or period < 1:
        raise LaconicError(
            f"{parameters} parameters of {bits} bits on {gpus} GPUs with {bytes_per_second} B/s every {period} steps: "
            "counts start at one, rates and bits are positive"
        )
    copy = parameters * bits / 8 / period
    ring = 2 * (gpus - 1) / gpus * copy
    return SynchronisationCost(gpus * parameters / period, copy, copy / bytes_per_second, ring, ring / bytes_per_second)
