"""BytePS: every host sums a share of the model, chosen so that all links are equally busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.cost.lanes import Lane
from laconic.cost.server_star import sliced
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price

PIECE_BYTES = 4_096_000
_FREE = Price(0.0, 0.0)


@dataclass(frozen=True)
class Fleet:
    """Hosts with GPUs and spare hosts without, a duplex link for each, and prices of moving bytes within a host."""

    gpu_machines: int
    cpu_machines: int
    bits_per_second: float
    startup_seconds: float = 0.0
    local: Price = _FREE  # a reduce-scatter, or an all-gather, among a host's GPUs
    copy: Price = _FREE  # between device and host
    summing: Price = _FREE

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_machines <= self.gpu_machines or self.gpu_machines < 1 or not self.bits_per_second > 0:
            raise LaconicError(
                f"BytePS needs a host with GPUs, and uses no more hosts without ({self.cpu_machines}) than with them "
                f"({self.gpu_machines}); leave the others out"
            )

    def shares(self) -> tuple[float, ...]:
        """Return the share of the model that each host sums, those with GPUs first; the shares add up to one."""
        n, k = self.gpu_machines, self.cpu_machines
        if n == 1:  # nothing has to be sent
            return (1.0,) + (0.0,) * k
        total = n * n + k * n - 2 * k
        return ((n - k) / total,) * n + (2 * (n - 1) / total,) * k

    def seconds(self, nbytes: float) -> float:
        """Return how long every link is busy in each direction for a model of this size; no other shares take less."""
        n, k = self.gpu_machines, self.cpu_machines
        if n == 1:
            return 0.0
        return 2 * n * (n - 1) * nbytes / (n * n + k * n - 2 * k) * 8 / self.bits_per_second

    def pushes(self, nbytes: float) -> NDArray[np.float64]:
        """Return the matrix of bytes from host a to host b: every host with GPUs sends to each what that one sums.

        Pulls are the transpose.
        """
        hosts = self.gpu_machines + self.cpu_machines
        blocks = np.zeros((hosts, hosts))
        blocks[: self.gpu_machines] = nbytes * np.asarray(self.shares())
        np.fill_diagonal(blocks, 0.0)
        return blocks


@technique(
    "byteps",
    axis="schedule",
    paper="Jiang et al., OSDI 2020",
    why_no_word=(
        "It prices the shares that hosts without GPUs sum for the others; servers of a run have equal shares, and "
        "pieces through them train as `bsp / ps / bytescheduler`."
    ),
)
def byteps(
    layers: LayerTimes,
    fleet: Fleet,
    piece_bytes: float = PIECE_BYTES,
    credit_bytes: float | None = None,
    gated: bool = False,
) -> float:
    """Return the seconds of an iteration in which pieces pass through queued stages and all hosts share the summing.

    With a credit, queues serve the tensors nearest the input first, and with `gated` the layers of the next forward
    pass wait only for their own tensors. Reading chosen: no credit, in order of readiness, as in later releases.
    """

    def stages(nbytes: float) -> tuple[Stage, ...]:
        link = (fleet.startup_seconds if nbytes else 0.0) + fleet.seconds(nbytes)
        inside = (("reduce", fleet.local), ("to host", fleet.copy), ("sum", fleet.summing))
        scatter, out, add = (Stage(lane, price.seconds(nbytes)) for lane, price in inside)
        into, gather = Stage("to device", fleet.copy.seconds(nbytes)), Stage("gather", fleet.local.seconds(nbytes))
        return scatter, out, Stage("push", link), add, Stage("pull", link), into, gather

    transfers = [Transfer((p.tensor,), stages(p.nbytes), p.nbytes) for p in sliced(layers.nbytes, 1, piece_bytes)]
    served = {} if credit_bytes is None else {s.lane: Lane(True, credit_bytes) for s in stages(1.0)}
    return period(layers, transfers, Order(served, gated))
