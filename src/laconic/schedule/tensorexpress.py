"""TensorExpress: switches serve the packets of urgent tensors first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from laconic.cost.server_star import ServerStar, Slice, class_of, sliced, star_period
from laconic.errors import LaconicError
from laconic.network.packets import PACKET_BYTES, Packet, packets, through
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes


@technique(
    "tensorexpress",
    axis="schedule",
    paper="Kang et al., IEEE CLOUD 2020",
    aliases=["tensor_express"],
    why_no_word=(
        "Its switches serve queues by packet priority, which no process can ask of a network here; `p3` orders "
        "slices before they are sent, and trains."
    ),
    evidence="modelled",
    holds="switches with queues: a packet of the top priority waits for one other at most; one queue keeps the order",
)
def tensorexpress(layers: LayerTimes, star: ServerStar, queues: int = 8, packet_bytes: float = PACKET_BYTES) -> float:
    """Return the seconds of an iteration in which switches serve their ports' queues strictly by packet priority.

    Hosts send in the order in which gradients and sums become ready; an urgent packet overtakes others at the switch's
    port towards a server or a worker. It runs on the virtual network only. Reading chosen: queues of equally many
    tensors, which are not split.
    """
    if queues < 1 or not packet_bytes > 0:
        raise LaconicError(f"a port has at least one queue, and a packet some bytes, not {queues} and {packet_bytes}")
    pieces = [
        replace(piece, urgency=class_of(piece.tensor, layers.count, queues))
        for piece in sliced(layers.nbytes, star.servers)
    ]
    return star_period(layers, star, pieces, partial(switched, queues=queues, packet_bytes=packet_bytes))


def switched(
    pieces: Sequence[Slice],
    ready: Sequence[float],
    star: ServerStar,
    queues: int = 8,
    packet_bytes: float = PACKET_BYTES,
) -> list[float]:
    """Return when each piece's sum has reached all workers through one switch, which stores and forwards packets.

    A server returns a sum when its last packet has arrived, a packet to each worker in turn.
    """
    rate = star.seconds_per_byte
    made = {number: ready[piece.tensor] for number, piece in enumerate(pieces)}
    pushed = through(_cut(pieces, made, packet_bytes), rate)
    back = [0.0] * len(pieces)
    towards: list[Packet] = []
    for server in range(star.servers):
        own = [packet for packet in pushed if pieces[packet.owner].server == server]
        merged = [packet for packet in own for _ in range(star.workers)]  # the workers are alike
        summed = {packet.owner: packet.seconds for packet in through(merged, rate, queues)}
        replies = _cut(pieces, summed, packet_bytes)
        leaving = through([packet for packet in replies for _ in range(star.workers)], rate)
        towards += leaving[star.workers - 1 :: star.workers]  # to the last worker
    for packet in through(sorted(towards, key=lambda packet: packet.seconds), rate, queues):
        back[packet.owner] = packet.seconds
    return back


def _cut(pieces: Sequence[Slice], since: Mapping[int, float], packet_bytes: float) -> list[Packet]:
    """Return the packets of these pieces, each ready from its piece's time on."""
    return [
        Packet(seconds, nbytes, pieces[number].urgency, number)
        for number, seconds in since.items()
        for nbytes in packets(pieces[number].nbytes, packet_bytes)
    ]
