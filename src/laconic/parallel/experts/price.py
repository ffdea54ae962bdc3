"""What a layer of experts sends and how long that takes on a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.collective import flows
from laconic.collective.exchanges import pairwise
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.network.flow import Flow
from laconic.network.network_tree import Network
from laconic.network.placed import Placed
from laconic.parallel.message_code import MessageCode

_COUNT_BYTES = 8


@dataclass(frozen=True)
class ExpertMessages:
    """The messages of one pass of a layer through the network, in seconds.

    - `counts`: in which devices gather how many tokens chose each expert, once and forward.
    - `forward`: of the two all-to-alls of activations.
    - `backward`: of the two all-to-alls of their gradients.
    """

    counts: float
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.counts + self.forward + self.backward


def even_rows(devices: int, tokens: int, top: int) -> NDArray[np.float64]:
    """Return how many rows each device sends to each where tokens spread evenly: `tokens` are a device's own."""
    return np.full((devices, devices), tokens * top / devices)


def expert_seconds(
    network: Network,
    rows: ArrayLike,
    width: int,
    experts: int,
    top: int,
    *,
    forward: str = "none",
    backward: str = "none",
    element_bytes: int = 4,
    ranks: Sequence[int] | None = None,
) -> ExpertMessages:
    """Return what the messages of a layer take, forward and backward, by the program of a pairwise all-to-all.

    No message overlaps with computing: an expert needs all its rows, and what follows the layer all outputs.

    - `rows`: how many rows of tokens each device sends to each (from, to); `even_rows` where they spread evenly.
    - `width`: elements of a row.
    - `experts`, `top`: of the layer: how many there are, and how many a token passes.
    - `forward`, `backward`: how activations and gradients are encoded. Encoding itself takes no time here.
    - `element_bytes`: of an element that is not encoded.
    - `ranks`: the devices on the network; default: the first ones.
    """
    sent = np.asarray(rows, dtype=float)
    if sent.ndim != 2 or sent.shape[0] != sent.shape[1]:
        raise LaconicError(f"rows are a square table of devices by devices, not of shape {sent.shape}")
    places = list(range(len(sent)) if ranks is None else ranks)
    counts = flows.all_gather(len(sent), _COUNT_BYTES * top * experts)

    def there_and_back(text: str) -> float:
        nbytes, links = message_bytes(sent, width, text, element_bytes), Placed(network, tuple(places))
        programs = [replace(pairwise(len(sent)), shares=table.ravel()) for table in (nbytes, nbytes.T)]
        return sum(price(program, 1.0, links).seconds for program in programs)

    return ExpertMessages(_seconds(network, counts, places), there_and_back(forward), there_and_back(backward))


def message_bytes(rows: ArrayLike, width: int, code: str = "none", element_bytes: int = 4) -> NDArray[np.float64]:
    """Return the bytes of the messages between devices of so many rows each, encoded as `code` says."""
    made, counts = MessageCode.of(code), np.asarray(rows, dtype=float)
    if made is None:
        return counts * width * element_bytes
    return np.array([[float(made.nbytes(round(count * width))) for count in row] for row in counts])


def _seconds(network: Network, flow: Flow, places: Sequence[int]) -> float:
    """Return what a flow takes with the network for itself: its rounds' latency, and bytes over the busiest link."""
    ranks = np.asarray(places, dtype=np.int64)
    links, loads, latency = network.load(ranks[flow.sources], ranks[flow.destinations], flow.nbytes)
    return flow.rounds * latency + float((loads / network.capacities[links]).max(initial=0.0))
