"""All-reduces as programs of sends, which are carried out message by message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from laconic.architecture.allreduce import EqualWorkers
from laconic.claims import EveryRankEndsWithTheSum, WireFactor
from laconic.collective.adaptive import CHOOSERS, Adaptive, size_class
from laconic.collective.cheapest import read_choice
from laconic.collective.generators import make_program
from laconic.collective.live_probe import Measured, measured_links
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.cost.collectives import CollectiveCosts
from laconic.network.network_tree import Network
from laconic.network.routes import Vector
from laconic.registry import knob, technique
from laconic.worker import CodedSum, Coding, Communication, Group, Meets, Reduce

MOST_PRICED = 64
"""Among more workers a plan does not make the programs: that would take longer than the rest of it."""

MESSAGE_SECONDS = 1e-4
"""What a plan takes each message to cost beside the network: gloo's sends and receives, with the Python around them."""


@technique(
    "collective",
    paper="Cowan et al., ASPLOS 2023 (MSCCLang: collectives as programs)",
    claims=[EveryRankEndsWithTheSum(), WireFactor(lambda size: 2 * (size - 1) / size)],
    worth_trying=["collective(auto)"],
)
@dataclass(frozen=True)
class Collective(EqualWorkers):
    """Sum by a program of sends in place of the transport's own all-reduce: `collective(blueconnect)`, or by the one
    that suits the network, `collective(auto)`.

    The program is proved to end with the sum at every rank before anything is sent. The order of sums is the program's,
    so that every engine gives the same bits. Programs for hosts (`hierarchical`, `blueconnect`, `leader`) take those of
    the run: workers of one host have neighbouring ranks. `laconic collective list` names the programs.

    With `auto` the first exchange probes the network between the workers, and for every power of two of sizes the
    cheapest of all programs and the transport's own all-reduce is taken; with `synthesised` a program is made for the
    network that the probe shows. Workers probe again when exchanges have begun to take 1.5 times as long, or less.

    Compressors meet inside the program where they say so: behind a codec, `per_hop` lets each reducing send decode, add
    and encode again, as in `bsp / int8+per_hop / collective(auto)`.
    """

    program: str = knob("ring", doc="the program's name, or auto, or synthesised")

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        if meets != "reduce":
            return super().sent_bytes(payload_bytes, size, meets)
        name = "ring" if self.program in CHOOSERS else self.program  # no all-reduce sends less in the mean
        return payload_bytes * float(make_program(name, size).sent_shares.mean())

    def sum_seconds(self, payload_bytes: Vector, network: Network) -> tuple[Vector, Vector] | None:
        """Return the prices of its program, or of what would be chosen. They are the transport's where its collectives
        were measured, among more than 64 workers, and for a program that is yet to be synthesised."""
        if network.measured is not None or not 1 < network.size <= MOST_PRICED or self.program == "synthesised":
            return None
        own = CollectiveCosts(network, network.size).carry("reduce", payload_bytes)
        found, known = [], measured_links(network, MESSAGE_SECONDS)
        for nbytes, alone, shared in zip(payload_bytes, own.alone_seconds, own.shared_seconds, strict=True):
            program = self._planned(float(nbytes), network, known) if nbytes else None
            if program is not None:
                priced = price(program, float(nbytes), network, MESSAGE_SECONDS)
                alone, shared = priced.seconds, priced.busiest_seconds
            found.append((alone, shared))
        times = np.array(found, dtype=float).reshape(-1, 2)
        return times[:, 0], times[:, 1]

    def _planned(self, nbytes: float, network: Network, known: Measured) -> Program | None:
        """Return the program for such vectors, or None where the transport's own all-reduce would be chosen."""
        if self.program not in CHOOSERS:
            inside = network.host_size if len(network.levels) > 1 else 1
            return make_program(self.program, network.size, inside)
        text = CHOOSERS[self.program](known, 2.0 ** size_class(int(nbytes)))
        return read_choice(text, network.size).program

    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        flat = x.reshape(-1)
        yield from self._run(flat, group, request.control)
        return x if flat.data_ptr() == x.data_ptr() else x.copy_(flat.view_as(x))

    def _coded_sum(self, request: CodedSum, group: Group) -> Communication[Any]:
        return self._run(request.tensor, group, coding=request.coding)

    def _run(
        self, flat: Tensor, group: Group, control: float = 0.0, coding: Coding | None = None
    ) -> Communication[Tensor]:
        if self.program in CHOOSERS:
            return Adaptive.of(group, self.program).sum(flat, control, coding)
        return group.run(make_program(self.program, group.size, group.host_size), flat, control, coding)
