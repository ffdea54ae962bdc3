"""How clients reach the server: the last word of a federated sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from laconic.architecture.compression_alone import downward_compressor
from laconic.compression.base import Compressor
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

    def wanted(self, clients: int) -> tuple[int, int]:
        """Return how many clients are selected where so many reports are wanted, and how many reports a round needs."""
        return math.ceil(round(self.over * clients, 9)), max(1, math.ceil(round(self.minimum * clients, 9)))


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
