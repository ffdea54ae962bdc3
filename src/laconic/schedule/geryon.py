"""Geryon: flows whose priorities the network itself serves."""

from __future__ import annotations

from dataclasses import replace

from laconic.cost.server_star import Carry, ServerStar, class_of, sliced, star_period
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes

SLICE_BYTES = 4_096_000


@technique(
    "geryon",
    axis="schedule",
    paper="Wang, Li, Geng, INFOCOM 2020",
    why_no_word=(
        "Its links serve priority classes themselves, which no process can ask of a network here; `p3` orders the "
        "same slices before they are sent, and trains."
    ),
    evidence="modelled",
    holds="links that serve classes strictly: lower ones change nothing for an urgent flow; one class is slicing alone",
)
def geryon(
    layers: LayerTimes, star: ServerStar, carry: Carry, classes: int = 8, slice_bytes: float = SLICE_BYTES
) -> float:
    """Return the seconds of an iteration in which every link serves the tensors nearest the input strictly first.

    Tensors are sliced over the servers; each worker and server are connected by one flow per priority class, so that an
    urgent slice overtakes all less urgent ones on a link. With one class it is slicing alone. It runs on the virtual
    network only, for which `carry` is `laconic.cost.server_star_flows.carry`. Reading chosen: classes of equally many
    tensors.
    """
    if classes < 1:
        raise LaconicError(f"a network has at least one class, not {classes}")
    pieces = sliced(layers.nbytes, star.servers, slice_bytes)
    ranked = [replace(piece, urgency=class_of(piece.tensor, layers.count, classes)) for piece in pieces]
    return star_period(layers, star, ranked, carry)
