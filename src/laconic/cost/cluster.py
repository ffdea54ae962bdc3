"""Machines with several GPUs each, and the lanes that an all-reduce or a push and pull takes through them.

Nothing here is measured on such a cluster but the two prices: those of a hop inside of a machine, and of one between
machines. The rest is how the software of 2020 moves bytes:

- A ring passes every GPU; a byte is as slow as the slowest hop, start-ups add up along the ring.
- What GPUs move goes at half its pace beside computing, which shares them; the network between does not slow down.
- BytePS sums inside of a machine, copies to the host, pushes, pulls, copies back and gathers, one piece after
  another. GPUs, copies and host share the PCIe lanes: one lane. All machines push a piece at about the same time, so
  that a server's link takes them all; servers share the bytes evenly.
- A push and a request to pull leave through the same connection: a request waits for the pushes that came before it.
  Where the network is slower than the machine, pulls therefore begin late, though links are duplex.
- Merging copies gradients into a buffer and back, at the speed of the GPU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from laconic.cost.iteration import Stage
from laconic.errors import LaconicError
from laconic.values.price import Price

RING, HOST = "ring", "host"


@dataclass(frozen=True)
class Cluster:
    """So many GPUs, in machines of a few; as many servers as machines where there are several."""

    gpus: int
    inside: Price  # of a hop from GPU to GPU in a machine
    between: Price  # of a hop between machines
    per_machine: int = 4
    servers: int | None = None  # none: as many as machines
    pace_beside: float = 0.5  # of what GPUs move, while they compute
    memory_bytes_per_second: float = 616e9  # of a GPU: RTX 2080 Ti
    planned: Price | None = None  # of an all-reduce, as whoever merges believes; none: the ring's own

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.per_machine < 1 or (self.gpus > self.per_machine and self.gpus % self.per_machine):
            raise LaconicError(f"{self.gpus} GPUs do not fill machines of {self.per_machine}")
        if not 0 < self.pace_beside <= 1 or (self.servers is not None and self.servers < 1):
            raise LaconicError("beside computing GPUs go at a pace in (0, 1], and there is one server at least")

    @property
    def machines(self) -> int:
        return max(1, self.gpus // self.per_machine)

    @cached_property
    def ring(self) -> Price:
        """An all-reduce: 2(N-1)/N rounds past all hops, of which one leaves each machine."""
        leaving = self.machines if self.machines > 1 else 0
        rounds = 2 * (self.gpus - 1) / self.gpus
        startups = (self.gpus - leaving) * self.inside.startup_seconds + leaving * self.between.startup_seconds
        slowest = self.between if leaving else self.inside
        return Price(rounds * startups, rounds * slowest.seconds_per_byte)

    @cached_property
    def ring_beside(self) -> Price:
        """The same while GPUs compute: start-ups are theirs, bytes are no faster than they pass the GPUs."""
        alone, rounds = self.ring, 2 * (self.gpus - 1) / self.gpus
        passing = rounds * self.inside.seconds_per_byte / self.pace_beside
        return Price(alone.startup_seconds / self.pace_beside, max(alone.seconds_per_byte, passing))

    def all_reduce(self, nbytes: float) -> Stage:
        return Stage(RING, self.ring.seconds(nbytes), self.ring_beside.seconds(nbytes))

    def part_of_all_reduce(self, nbytes: float) -> Stage:
        """What these bytes add to an all-reduce that carries others too, with the copies into its buffer and back."""
        copies = self.copying(nbytes) * 2
        alone, beside = self.ring.seconds_per_byte, self.ring_beside.seconds_per_byte
        return Stage(RING, alone * nbytes + copies, beside * nbytes + copies)

    def copying(self, nbytes: float) -> float:
        """A GPU's memory is read and written."""
        return 2 * nbytes / self.memory_bytes_per_second

    def push_pull(self, nbytes: float, server: int) -> tuple[Stage, ...]:
        """The way of one piece to a server and back; in one machine, from its GPUs to its GPUs."""
        count = min(self.gpus, self.per_machine)
        summing = (count - 1) * self.inside.seconds(nbytes / count)
        if self.machines == 1:
            return (self._host(summing), self._host(summing))
        copying = nbytes / count * self.inside.seconds_per_byte  # every GPU its part, to the host or back
        sharing = max(self.machines, self.server_count)
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
        return self.servers or self.machines

    def _host(self, seconds: float) -> Stage:
        return Stage(HOST, seconds, seconds / self.pace_beside)
