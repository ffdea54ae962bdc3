"""Choice of the tensors that are worth compressing, since encoding and decoding take computing time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price

_ONE_BY_ONE = 16  # up to this number of largest tensors is tried one by one, then in steps of a quarter


@dataclass(frozen=True)
class Coding:
    """A compressor's cost: its computing time by a tensor's bytes, and `ratio`, the share of them that is sent."""

    encode: Price
    decode: Price
    ratio: float

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise LaconicError(
                f"the ratio {self.ratio} is negative; give the share of a message's bytes that is sent, 0 or more"
            )


@dataclass(frozen=True)
class CompressedSet:
    """A choice of tensors to compress, and the iteration's time with it."""

    tensors: frozenset[int]
    seconds: float


@technique(
    "compression_scheduler",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247, section 5.3 (an open problem)",
    why_no_word=(
        "It chooses from a profile, before a training, and `laconic iteration` runs it; in a training the schedule "
        "`auto` chooses the tensors that are worth compressing."
    ),
)
def compressed(
    groups: Sequence[Sequence[int]], layers: LayerTimes, price: Price, coding: Coding, gated: bool = False
) -> CompressedSet:
    """Return which of the largest tensors to compress (none, some or all) for the shortest simulated iteration.

    Each group of tensors is sent as one message, in this order. Reading chosen: the survey states the problem alone.
    Encoding follows a tensor's backward and delays the next; decoding precedes its forward, or the first layer's where
    the forward pass waits for everything. Of choices that take the same time, the one that compresses least is kept.
    """
    largest = sorted(range(layers.count), key=lambda i: (-layers.nbytes[i], i))
    candidates = (frozenset(largest[:n]) for n in _counts(layers.count))
    found = [CompressedSet(tensors, seconds(groups, layers, price, coding, tensors, gated)) for tensors in candidates]
    return min(found, key=lambda chosen: chosen.seconds)


def seconds(
    groups: Sequence[Sequence[int]],
    layers: LayerTimes,
    price: Price,
    coding: Coding,
    tensors: frozenset[int],
    gated: bool = False,
) -> float:
    """Return the seconds of an iteration in which these tensors are compressed."""
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
        n += max(1, n // 4) if n >= _ONE_BY_ONE else 1
    yield count
