"""The hosts of a cluster and their GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laconic.errors import ClusterError
from laconic.network.graph import Graph


@dataclass(frozen=True)
class Host:
    """A machine with GPUs of one type.

    - `name`: what tells it from others.
    - `gpus`: how many GPUs it has.
    - `gpu`: their type, such as `v100`; empty where all are alike.
    - `rack`: the rack that it stands in; empty where that makes no difference.
    - `cpu_milli`: thousandths of a core that jobs can ask for.
    - `memory_mib`: its memory.
    - `gpu_memory_bytes`: that of each of its GPUs.
    - `gpu_tree`: how its GPUs hang together, from the top: (2, 3, 2) are two sockets of three switches of two GPUs;
      empty where all are alike.
    """

    name: str
    gpus: int
    gpu: str = ""
    rack: str = ""
    cpu_milli: float = float("inf")
    memory_mib: float = float("inf")
    gpu_memory_bytes: float = float("inf")
    gpu_tree: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.gpu_tree and math.prod(self.gpu_tree) != self.gpus:
            raise ClusterError(f"{self.name} has {self.gpus} GPUs and a tree of {math.prod(self.gpu_tree)}")


@dataclass(frozen=True)
class Cluster:
    """Hosts, in an order by which slots name them.

    - `hosts`: the hosts.
    - `network`: the links between them, whose ranks they are; none: messages between hosts are not modelled.
    - `circuit_ports`: how many ports of an optical switch every rack has, by which circuits join two racks.
    - `circuit_bits_per_second`: the rate of a circuit, in either direction.
    """

    hosts: tuple[Host, ...]
    network: Graph | None = None
    circuit_ports: int = 0
    circuit_bits_per_second: float = 0.0

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise ClusterError("two hosts of a cluster have the same name; give each a name of its own")
        if not self.hosts:
            raise ClusterError("a cluster without hosts runs nothing; give at least one")
        if self.network is not None and self.network.size != len(self.hosts):
            raise ClusterError(f"a network of {self.network.size} ranks does not join {len(self.hosts)} hosts")

    @staticmethod
    def uniform(hosts: int, gpus: int, gpu: str = "") -> Cluster:
        """Return a cluster of equal hosts.

        - `hosts`: how many.
        - `gpus`: of each.
        - `gpu`: their type.
        """
        return Cluster(tuple(Host(f"host{i}", gpus, gpu) for i in range(hosts)))

    @cached_property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(host.gpus for host in self.hosts)

    @cached_property
    def gpu_levels(self) -> int:
        """The levels of the deepest tree of GPUs."""
        return max(len(host.gpu_tree) or 1 for host in self.hosts)

    @cached_property
    def capacity(self) -> np.ndarray:
        """The share of each device that can be given away: 1 where host h has a device d, in a table of both."""
        found = np.zeros((len(self.hosts), max(host.gpus for host in self.hosts)))
        for row, host in zip(found, self.hosts, strict=True):
            row[: host.gpus] = 1.0
        found.flags.writeable = False
        return found
