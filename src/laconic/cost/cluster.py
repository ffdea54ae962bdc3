"""A cluster of hosts with several GPUs each, and what an all-reduce or a push and pull takes on it.

Only two prices are measured on such a cluster: that of a hop between GPUs of one host, and that of a hop between hosts.
The rest is how the software of 2020 moves bytes:

- A ring passes every GPU; a byte is as slow as the slowest hop, start-ups add up along the ring.
- Transfers by GPUs run at half their pace while the GPUs compute; the network between hosts does not slow down.
- BytePS sums inside of a host, copies to the CPU's memory, pushes, pulls, copies back and gathers, one piece after
  another. GPUs, copies and CPU share the PCIe lanes: one lane. All hosts push a piece at about the same time, so
  that a server's link takes them all; servers share the bytes evenly.
- A push and a request to pull are sent over the same connection: a request waits for the pushes before it. Where the
  network is slower than the host, pulls therefore begin late, though links are duplex.
- Merging copies gradients into a buffer and back, at the speed of the GPU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from laconic.cost.iteration import Stage
from laconic.errors import LaconicError
from laconic.values.price import Price

RING, HOST = "ring", "host"
"""The lanes of a ring all-reduce, and of what happens inside of a host."""


@dataclass(frozen=True)
class Cluster:
    """GPUs in hosts of a few each, with a network between the hosts, and parameter servers."""

    gpus: int
    inside: Price  # of a hop from GPU to GPU in a host
    between: Price  # of a hop between hosts
    gpus_per_host: int = 4
    servers: int | None = None  # None: as many as hosts
    overlapped_pace: float = 0.5  # of transfers by GPUs, while they compute
    memory_bytes_per_second: float = 616e9  # of a GPU: RTX 2080 Ti
    planned: Price | None = None  # of an all-reduce, as the merging scheduler assumes; None: `ring`

    def __post_init__(self) -> None:
        if (
            self.gpus < 1
            or self.gpus_per_host < 1
            or (self.gpus > self.gpus_per_host and self.gpus % self.gpus_per_host)
        ):
            raise LaconicError(f"{self.gpus} GPUs do not fill hosts of {self.gpus_per_host}")
        if not 0 < self.overlapped_pace <= 1 or (self.servers is not None and self.servers < 1):
            raise LaconicError("transfers beside computing have a pace in (0, 1], and there is at least one server")

    @property
    def hosts(self) -> int:
        return max(1, self.gpus // self.gpus_per_host)

    @cached_property
    def ring(self) -> Price:
        """The price of a ring all-reduce: 2(N-1)/N rounds over the N GPUs' hops, of which one leaves each host."""
        leaving = self.hosts if self.hosts > 1 else 0
        rounds = 2 * (self.gpus - 1) / self.gpus
        startups = (self.gpus - leaving) * self.inside.startup_seconds + leaving * self.between.startup_seconds
        slowest = self.between if leaving else self.inside
        return Price(rounds * startups, rounds * slowest.seconds_per_byte)

    @cached_property
    def ring_overlapped(self) -> Price:
        """The price of a ring all-reduce while GPUs compute: they slow down the start-ups, and bytes that pass them."""
        alone, rounds = self.ring, 2 * (self.gpus - 1) / self.gpus
        passing = rounds * self.inside.seconds_per_byte / self.overlapped_pace
        return Price(alone.startup_seconds / self.overlapped_pace, max(alone.seconds_per_byte, passing))

    def all_reduce(self, nbytes: float) -> Stage:
        """Return the stage of an all-reduce of so many bytes."""
        return Stage(RING, self.ring.seconds(nbytes), self.ring_overlapped.seconds(nbytes))

    def part_of_all_reduce(self, nbytes: float) -> Stage:
        """Return what these bytes add to an all-reduce of a merged buffer, with the copies into the buffer and back."""
        copies = self.copying(nbytes) * 2
        alone, overlapped = self.ring.seconds_per_byte, self.ring_overlapped.seconds_per_byte
        return Stage(RING, alone * nbytes + copies, overlapped * nbytes + copies)

    def copying(self, nbytes: float) -> float:
        """Return the seconds of a copy in a GPU's memory, which is read and written."""
        return 2 * nbytes / self.memory_bytes_per_second

    def push_pull(self, nbytes: float, server: int) -> tuple[Stage, ...]:
        """Return the stages of one piece to a server and back; with one host, from its GPUs to its GPUs."""
        count = min(self.gpus, self.gpus_per_host)
        summing = (count - 1) * self.inside.seconds(nbytes / count)
        if self.hosts == 1:
            return (self._host(summing), self._host(summing))
        copying = nbytes / count * self.inside.seconds_per_byte  # every GPU its part, to the CPU's memory or back
        sharing = max(self.hosts, self.server_count)
        link = self.between.startup_seconds + sharing * nbytes * self.between.seconds_per_byte
        out, back = f"to{server}", f"from{server}"
        request = Stage(out, self.between.startup_seconds)
        return (
            self._host(summing + copying),
            Stage(out, link),
            request,
            Stage(back, link),
            self._host(copying + summing),
        )

    @property
    def server_count(self) -> int:
        return self.servers or self.hosts

    def _host(self, seconds: float) -> Stage:
        return Stage(HOST, seconds, seconds / self.overlapped_pace)
