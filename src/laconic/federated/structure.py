"""How clients reach the server: the last word of a federated sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from laconic.architecture.compression_alone import downward_compressor
from laconic.compression.base import Compressor
from laconic.federated.layout import Layout
from laconic.federated.messages import Wire
from laconic.federated.participation import Collected, Flight, report_of
from laconic.federated.population import Population
from laconic.federated.rule import Rule
from laconic.knobs import Technique
from laconic.registry import knob, technique


@dataclass(frozen=True)
class Structure(Technique):
    """What a round waits for, and what is sent down. Words for it stand last in a federated sentence."""

    axis: ClassVar[str] = "federated"

    down: str = knob("none", doc='compression of what is sent down, as int8, or "topk(0.01)"')
    over: float = knob(1.0, low=1.0, doc="times as many clients are selected as reports are wanted")
    deadline: float = knob(math.inf, low=0.0, doc="seconds after which a round is closed")
    minimum: float = knob(0.0, low=0.0, high=1.0, doc="share of the wanted reports without which a round is lost")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.downward()

    def downward(self) -> Compressor:
        """Return the compressor of what is sent down."""
        return downward_compressor(self.name, self.down)

    def objects(self, rule: Rule, compressor: Compressor) -> str | None:
        """Return why these cannot stand beside this word, or None if they can."""
        return None

    def wire(self, compressor: Compressor, layout: Layout, seed: int, population: Population) -> Wire:
        """Return how clients encode what they send."""
        return Wire(compressor, layout, seed)

    def collect(
        self, wire: Wire, population: Population, taken: Sequence[Flight], flights: Sequence[Flight]
    ) -> Collected:
        """Return what the server learns from the reports that are taken, of all clients that were selected: every one
        of them."""
        return Collected([report_of(flight, population) for flight in taken])

    def wanted(self, clients: int) -> tuple[int, int]:
        """Return how many clients are selected where so many reports are wanted, and how many reports a round needs."""
        return math.ceil(round(self.over * clients, 9)), max(1, math.ceil(round(self.minimum * clients, 9)))

    def edges_of(self, clients: Sequence[int], round_number: int, seed: int) -> dict[int, int]:
        """Return the aggregator to which each client of a round reports; none where that crashes in the round."""
        return dict.fromkeys(clients, 0)


@technique(
    "server",
    paper="McMahan et al., AISTATS 2017; Bonawitz et al., MLSys 2019 (over-selection and deadlines)",
)
@dataclass(frozen=True)
class OneServer(Structure):
    """All clients report to one server.

    With `over` more clients are selected than reports are wanted, and a round is closed when enough have come or the
    `deadline` is over; late ones are told so, and keep their memory as it was. What is sent down is compressed as a
    change of what clients have seen: the server remembers the rest, and a client that missed rounds gets their changes
    one after the other, or the whole model where that is shorter.
    """


@technique("bonawitz_two_level", aliases=["hierarchy"], paper="Bonawitz et al., MLSys 2019")
@dataclass(frozen=True)
class Hierarchy(Structure):
    """Aggregators between clients and the server: `fedavg / none / hierarchy(edges=10)`.

    In every round clients are dealt out at random to so many aggregators; each adds up what its own have sent, and a
    master adds up their sums: any rule that needs weighted sums alone has its sums made in these two levels. All of it
    is in memory: with an aggregator that crashes the reports of its clients are lost, and of nobody else, and the round
    commits if enough are left (`minimum`). `over` and `deadline` are those of `server`: the paper selects 1.3 times as
    many as it wants.

    Of the paper's system this is what decides what is learned and when a round is committed. Selectors that hold
    waiting devices, and the times at which rejected ones are told to come back, are not here, and neither is secure
    aggregation within a group. Aggregators are near the server: sums take no time to reach it.
    """

    edges: int = knob(10, low=1, doc="aggregators of a round")
    crashes: float = knob(0.0, low=0.0, high=1.0, doc="probability that an aggregator crashes in a round")

    def edges_of(self, clients: Sequence[int], round_number: int, seed: int) -> dict[int, int]:
        draw = np.random.default_rng([seed, 0xED6E, round_number])
        groups = np.array_split(draw.permutation(np.asarray(clients, dtype=np.int64)), self.edges)
        crashed = draw.random(self.edges) < self.crashes
        return {int(c): edge for edge, group in enumerate(groups) if not crashed[edge] for c in group}
