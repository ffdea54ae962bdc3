"""All-reduces as programs of sends, which are carried out message by message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laconic.architecture.allreduce import EqualWorkers
from laconic.claims import EveryRankEndsWithTheSum, WireFactor
from laconic.collective.adaptive import CHOOSERS, Adaptive
from laconic.collective.generators import make_program
from laconic.registry import knob, technique
from laconic.worker import Communication, Group, Meets, Reduce


@technique(
    "collective",
    paper="Cowan et al., ASPLOS 2023 (MSCCLang: collectives as programs)",
    claims=[EveryRankEndsWithTheSum(), WireFactor(lambda size: 2 * (size - 1) / size)],
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
    """

    program: str = knob("ring", doc="the program's name, or auto, or synthesised")

    def sent_bytes(self, payload_bytes: float, size: int, meets: Meets = "reduce") -> float:
        if meets != "reduce":
            return super().sent_bytes(payload_bytes, size, meets)
        name = "ring" if self.program in CHOOSERS else self.program  # no all-reduce sends less in the mean
        return payload_bytes * float(make_program(name, size).sent_shares.mean())

    def _sum(self, request: Reduce, group: Group) -> Communication[Any]:
        x = request.tensor
        flat = x.reshape(-1)
        if self.program in CHOOSERS:
            yield from Adaptive.of(group, self.program).sum(flat, request.control)
        else:
            yield from group.run(make_program(self.program, group.size, group.host_size), flat, request.control)
        return x if flat.data_ptr() == x.data_ptr() else x.copy_(flat.view_as(x))
