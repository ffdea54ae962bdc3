"""Workers and parameter servers on one switch, and an iteration's time for the times at which tensors are pulled.

Where the next forward pass waits layer by layer, everything that an iteration sends has arrived before the next
backward pass begins: the network is empty then, so one iteration is enough to know the period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.values.layer_times import LayerTimes


@dataclass(frozen=True)
class ServerStar:
    """A network of one switch, with a duplex link for each worker and each server."""

    workers: int
    servers: int
    bits_per_second: float

    def __post_init__(self) -> None:
        if min(self.workers, self.servers) < 1 or not self.bits_per_second > 0:
            raise LaconicError(f"a star has at least one worker, one server and a positive rate, not {self}")

    @property
    def seconds_per_byte(self) -> float:
        return 8 / self.bits_per_second


@dataclass(frozen=True)
class Slice:
    """Bytes of a tensor that one server sums, and their priority class on the network: the smallest is served first."""

    tensor: int
    server: int
    nbytes: float
    urgency: int = 0


Carry = Callable[[Sequence[Slice], Sequence[float], ServerStar], list[float]]
"""A function from the times at which gradients are ready to those at which each slice's sum has reached all workers."""


def sliced(nbytes: Sequence[float], servers: int, slice_bytes: float | None = None) -> list[Slice]:
    """Cut tensors into slices of at most so many bytes (None: uncut), in the order of backward, and give each slice to
    the server with the fewest bytes so far."""
    loads = [0.0] * servers
    pieces = []
    for tensor in reversed(range(len(nbytes))):
        left = nbytes[tensor]
        while left > 0:
            own = left if slice_bytes is None else min(left, slice_bytes)
            server = loads.index(min(loads))
            loads[server] += own
            left -= own
            pieces.append(Slice(tensor, server, own))
    return pieces


def class_of(tensor: int, tensors: int, classes: int) -> int:
    """Return a tensor's priority class: neighbouring tensors share one, those nearest the input are most urgent."""
    return tensor * classes // tensors


def gated_period(layers: LayerTimes, back: Sequence[float]) -> float:
    """Return the seconds from a backward pass to the next, where each layer's forward waits for its own tensor only."""
    now = sum(layers.backward)
    for seconds, arrived in zip(layers.forward, back, strict=True):
        now = max(now, arrived) + seconds
    return now


def star_period(layers: LayerTimes, star: ServerStar, pieces: Sequence[Slice], carry: Carry) -> float:
    """Return the seconds of an iteration in which these slices are transferred by `carry`."""
    back = layers.ready()
    for piece, arrived in zip(pieces, carry(pieces, back, star), strict=True):
        back[piece.tensor] = max(back[piece.tensor], arrived)
    return gated_period(layers, back)
