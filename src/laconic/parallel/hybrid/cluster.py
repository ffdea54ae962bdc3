"""What an iteration runs on: GPUs with their links, and the few constants that data sheets do not tell."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.profile.gpus.table import GPUS, Gpu


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in equal hosts.

    - `operations_per_second`: a GPU's peak at 16 bits, two operations for each multiplication with its addition.
    - `memory_bytes_per_second`, `memory_bytes`: of a GPU.
    - `per_host`: the GPUs of a host.
    - `link_bytes_per_second`: one way, between the GPUs of a host, for each of them.
    - `network_bytes_per_second`: one way, between hosts, for each GPU: the host's rate over its GPUs.
    """

    operations_per_second: float
    memory_bytes_per_second: float
    memory_bytes: float
    per_host: int
    link_bytes_per_second: float
    network_bytes_per_second: float

    def __post_init__(self) -> None:
        rates = (self.operations_per_second, self.memory_bytes_per_second, self.memory_bytes)
        if self.per_host < 1 or min(*rates, self.link_bytes_per_second, self.network_bytes_per_second) <= 0:
            raise LaconicError(f"a cluster has a GPU or more in a host, and positive rates and memory: {self}")

    @classmethod
    def of(cls, gpu: Gpu, network_bytes_per_second: float, per_host: int | None = None) -> Cluster:
        """Return a cluster of GPUs as they are sold, with the rate of the network for each GPU."""
        return cls(
            gpu.half,
            gpu.memory_bytes_per_second,
            gpu.memory_bytes,
            per_host or gpu.per_machine,
            gpu.link_bytes_per_second,
            network_bytes_per_second,
        )


DGX_A100 = Cluster.of(GPUS["A100 80GB"], 25e9)
"""Selene's hosts: eight A100 of 80 GB, and eight InfiniBand adapters of 200 Gb/s (Narayanan et al., SC 2021)."""
HOST_A100_40GB = Cluster.of(GPUS["A100 40GB"], 25e9)
"""One host of eight A100 of 40 GB, in which vTrain's runs on one node were measured (Bang et al., MICRO 2024)."""


@dataclass(frozen=True)
class Constants:
    """What data sheets do not tell; each is a share of a data sheet's figure or a time.

    - `product_share`: of the peak that a large matrix product reaches.
    - `memory_share`: of the memory's rate that elementwise operations and the optimizer reach.
    - `launch_seconds`: of the host, for each operation that it starts on the GPU.
    - `collective_seconds`: a collective among tensor-parallel ranks beside its bytes, for each doubling of the ranks.
    - `step_seconds`: an iteration's fixed cost: clipping, the optimizer's launches, counting.
    - `link_share`, `network_share`: of the links' rates that collectives reach. NCCL's published times on A100 (package
      aiconfigurator-core) approach 216 of 300 GB/s; between hosts the same share is assumed.
    """

    product_share: float = 0.75
    memory_share: float = 0.75
    launch_seconds: float = 30e-6
    collective_seconds: float = 50e-6
    step_seconds: float = 5e-3
    link_share: float = 0.72
    network_share: float = 0.72
