"""Which tensors are worth compressing: encoding and decoding take computing, which the iteration may not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price

_EACH = 16  # so many of the largest are tried one by one, then in steps of a quarter


@dataclass(frozen=True)
class Coding:
    """What a compressor takes for a tensor of so many bytes, on the lane that computes, and what it leaves of them."""

    encode: Price
    decode: Price
    ratio: float

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise LaconicError(f"what is left of a message is no negative share of it: {self.ratio}")


@dataclass(frozen=True)
class Chosen:
    """The tensors that are compressed, and the iteration's period with them."""

    tensors: frozenset[int]
    seconds: float


@technique(
    "compression_scheduler", axis="schedule", paper="Shi et al., arXiv 2005.13247, section 5.3 (an open problem)"
)
def compressed(
    groups: Sequence[Sequence[int]], layers: LayerTimes, price: Price, coding: Coding, gated: bool = False
) -> Chosen:
    """The largest tensors, as many of them as shorten the simulated iteration the most: none, some or all.

    Groups of tensors travel together, in this order. Reading chosen: the survey states the problem alone. Encoding
    follows a tensor's backward and delays the next; decoding goes before its forward, or before the first where the
    forward pass waits for everything. Of choices that take the same time, the one that compresses least is kept.
    """
    largest = sorted(range(layers.count), key=lambda i: (-layers.nbytes[i], i))
    tried = (frozenset(largest[:n]) for n in _counts(layers.count))
    found = [Chosen(tensors, seconds(groups, layers, price, coding, tensors, gated)) for tensors in tried]
    return min(found, key=lambda chosen: chosen.seconds)


def seconds(
    groups: Sequence[Sequence[int]],
    layers: LayerTimes,
    price: Price,
    coding: Coding,
    tensors: frozenset[int],
    gated: bool = False,
) -> float:
    """The period where these tensors are compressed."""
    if sorted(i for group in groups for i in group) != list(range(layers.count)):
        raise LaconicError(f"groups carry each of {layers.count} tensors once, not {[list(group) for group in groups]}")
    forward, backward, nbytes = map(list, (layers.forward, layers.backward, layers.nbytes))
    for i in tensors:
        backward[i] += coding.encode.seconds(layers.nbytes[i])
        forward[i if gated else 0] += coding.decode.seconds(layers.nbytes[i])
        nbytes[i] *= coding.ratio
    longer = replace(layers, forward=tuple(forward), backward=tuple(backward), nbytes=tuple(nbytes))
    transfers = []
    for group in groups:
        size = sum(nbytes[i] for i in group)
        transfers.append(Transfer(tuple(group), (Stage("net", price.seconds(size)),), size))
    return period(longer, transfers, Order(gated=gated))


def _counts(count: int) -> Iterator[int]:
    n = 0
    while n < count:
        yield n
        n += max(1, n // 4) if n >= _EACH else 1
    yield count
