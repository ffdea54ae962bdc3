"""Mercury: the transport sends whole tensors packet by packet, those of the most urgent tensor first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from laconic.cost.server_star import ServerStar, gated_period
from laconic.errors import LaconicError
from laconic.network.packets import PACKET_BYTES
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price, one_way


@technique(
    "mercury",
    axis="schedule",
    paper="Duan et al., IEEE TPDS 34(5), 2023; INFOCOM 2022",
    why_no_word=(
        "Its transport lets packets overtake each other inside the network stack, which no process can ask of it "
        "here; `p3` with small slices comes nearest, and trains."
    ),
)
def mercury(
    layers: LayerTimes, star: ServerStar, startup_seconds: float = 0.0, packet_bytes: float = PACKET_BYTES
) -> float:
    """Return the seconds of an iteration in which a whole tensor overtakes less urgent ones at the next packet.

    A tensor costs one start-up. Servers add packets of one offset on arrival and return the sum at once, so that a
    tensor is received while it is still being sent. It runs on the virtual network only. Reading chosen: the start-up
    may be overtaken at any time; nothing is lost. Pieces by priority are not faster where each starts up for a packet's
    time or longer. Where they start up faster they gain up to two packets, since pieces smaller than a packet return
    sooner: a tensor of one packet in three pieces, from start-ups of two ninths of a packet's time downwards.
    """
    price = one_way(star.workers, star.servers, Price(startup_seconds, star.seconds_per_byte))
    return gated_period(layers, streamed(layers.ready(), layers.nbytes, price, packet_bytes))


def streamed(since: Sequence[float], nbytes: Sequence[float], price: Price, packet_bytes: float) -> list[float]:
    """Return when each tensor's sum has arrived; tensors of smaller numbers are more urgent, and packets keep order."""
    if not packet_bytes > 0:
        raise LaconicError(f"a packet holds at least something, not {packet_bytes} bytes")
    packet = packet_bytes * price.seconds_per_byte
    startups = [price.startup_seconds] * len(nbytes)
    lefts = [price.seconds_per_byte * n for n in nbytes]
    back = list(since)
    upcoming = sorted((i for i, n in enumerate(nbytes) if n), key=lambda i: -since[i])  # the next is the last
    waiting: list[int] = []
    now = down = 0.0
    while upcoming or waiting:
        if not waiting:
            now = max(now, since[upcoming[-1]])
        while upcoming and since[upcoming[-1]] <= now:
            heapq.heappush(waiting, upcoming.pop())
        first = waiting[0]
        until = since[upcoming[-1]] if upcoming else math.inf
        if startups[first] > 0:
            spent = min(startups[first], until - now)
            startups[first] -= spent
            now += spent
            continue
        whole = packet * math.ceil(max(until - now, 0.0) / packet) if packet and until < math.inf else math.inf
        sent = min(lefts[first], whole)  # up to the end of the packet in which another becomes ready
        lefts[first] -= sent
        now += sent
        down = max(now, down) + sent if sent < packet else now + packet
        back[first] = down
        if lefts[first] <= 0:
            heapq.heappop(waiting)
    return back
