"""NCCL's choice of an algorithm and a protocol: for each pair a latency and a bandwidth, and the least time is taken.

A ring's latency grows with the number of ranks, a tree's with the logarithm of the number of hosts; a protocol has a
low latency (LL: every 8 bytes carry a flag of 4) or all of the bandwidth (Simple), or nearly both (LL128).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from laconic.collective.generators import make_program
from laconic.collective.program import Program
from laconic.errors import LaconicError
from laconic.registry import technique

PAYLOAD_SHARE = {"LL": 1 / 2, "LL128": 120 / 128, "Simple": 1.0}
"""The share of what a protocol sends that is payload."""

TREE_SHARE = 0.92
"""The share of the bandwidth that trees reach."""

START_SECONDS = {
    "tree": {"LL": 6.8e-6, "LL128": 14.0e-6, "Simple": 0.0},
    "ring": {"LL": 6.6e-6, "LL128": 14.0e-6, "Simple": 8.4e-6},
}
"""What starting takes (NCCL 2.18)."""

STEP_SECONDS = {
    "nvlink": {
        "tree": {"LL": 0.6e-6, "LL128": 1.25e-6, "Simple": 28e-6},
        "ring": {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
    },
    "pci": {
        "tree": {"LL": 1.0e-6, "LL128": 1.9e-6, "Simple": 28e-6},
        "ring": {"LL": 1.0e-6, "LL128": 2.5e-6, "Simple": 5.7e-6},
    },
    "network": {
        "tree": {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 28e-6},
        "ring": {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14.0e-6},
    },
}
"""What a step takes over each kind of link (NCCL 2.18)."""

LL_BESIDE_NETWORK = 1.8
"""How much longer LL's steps inside a host take where there are several (NCCL 2.18)."""

BUS_FACTORS = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
"""How often a byte crosses a rank's link, times p/(p-1): that of other collectives is 1 for any number of ranks."""


@dataclass(frozen=True)
class Cluster:
    """Machines as NCCL's tuning sees them.

    - `hosts`: their number.
    - `each`: GPUs in each.
    - `bus_bytes_per_second`: what all channels together carry, over the narrowest part of a ring.
    - `inside`: how a host's GPUs are joined: `nvlink` or `pci`.
    """

    hosts: int
    each: int
    bus_bytes_per_second: float
    inside: str = "nvlink"

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.each < 1 or self.bus_bytes_per_second <= 0 or self.inside not in ("nvlink", "pci"):
            raise LaconicError(f"a cluster has hosts with GPUs, joined by nvlink or pci, and a positive rate: {self}")

    @property
    def size(self) -> int:
        """The number of GPUs."""
        return self.hosts * self.each


@dataclass(frozen=True)
class Choice:
    """An algorithm and a protocol, with the time of an all-reduce that is predicted for them."""

    algorithm: str
    protocol: str
    seconds: float

    def program(self, cluster: Cluster) -> Program:
        """Return the program that carries the algorithm out; the protocol is a matter of the transport."""
        if self.algorithm == "ring":
            return make_program("ring", cluster.size)
        return make_program("nccl_tree", cluster.size, cluster.each)


def predictions(nbytes: float, cluster: Cluster) -> list[Choice]:
    """Return the predicted time of an all-reduce of so many bytes by every algorithm with every protocol."""
    return [
        Choice(algorithm, protocol, latency + nbytes / rate)
        for (algorithm, protocol), (latency, rate) in _table(cluster).items()
    ]


@technique(
    "nccl",
    axis="architecture",
    paper="NVIDIA NCCL 2.18; Jeaugey, 2019 (double binary trees)",
    why_no_word="It predicts and chooses; what it chooses trains as `collective(ring)` or `collective(nccl_tree)`.",
)
def cheapest(nbytes: float, cluster: Cluster) -> Choice:
    """Return the algorithm and protocol with the least predicted time, as NCCL chooses for every all-reduce.

    - `nbytes`: of a rank's vector.
    - `cluster`: the machines.
    """
    return min(predictions(nbytes, cluster), key=lambda choice: choice.seconds)


def bus_bytes_per_second(relation: str, nbytes: float, seconds: float, size: int) -> float:
    """Return the bus bandwidth that nccl-tests report: what each link would carry in an ideal ring, which does not
    depend on the number of ranks."""
    factor = BUS_FACTORS[relation] * (size - 1) / size if relation in BUS_FACTORS else 1.0
    return nbytes / seconds * factor


@lru_cache(maxsize=64)
def _table(cluster: Cluster) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the latency, and the bytes of a vector in a second, of each algorithm with each protocol."""
    return {
        (algorithm, protocol): (
            _latency_seconds(algorithm, protocol, cluster),
            _bytes_per_second(algorithm, protocol, cluster),
        )
        for algorithm, protocol in product(START_SECONDS, PAYLOAD_SHARE)
    }


def _latency_seconds(algorithm: str, protocol: str, cluster: Cluster) -> float:
    """A ring has 2(p-1) steps, of which 2(m-1) lead to another host; a tree goes up and down along a chain in each host
    and log2(m) levels of hosts."""
    near, far = (STEP_SECONDS[kind][algorithm][protocol] for kind in (cluster.inside, "network"))
    if cluster.hosts > 1 and protocol == "LL":
        near *= LL_BESIDE_NETWORK
    if algorithm == "ring":
        outside = 2 * (cluster.hosts - 1)
        steps = (2 * (cluster.size - 1) - outside) * near + outside * far
    else:
        steps = 2 * ((cluster.each - 1) * near + (cluster.hosts - 1).bit_length() * far)
    return START_SECONDS[algorithm][protocol] + steps


def _bytes_per_second(algorithm: str, protocol: str, cluster: Cluster) -> float:
    """In a ring each byte crosses a link 2(p-1)/p times, in two trees twice."""
    rate = cluster.bus_bytes_per_second * PAYLOAD_SHARE[protocol]
    return rate * cluster.size / max(1, 2 * (cluster.size - 1)) if algorithm == "ring" else rate * TREE_SHARE / 2
