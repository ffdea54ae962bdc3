"""The schedule `auto`: it measures, searches, explains its plan, and plans again when the network changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.registry import knob, technique
from laconic.schedule.base import Schedule
from laconic.schedule.search import search
from laconic.schedule.wfbp import WFBP
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique(
    "auto",
    paper="Shi et al., arXiv 2005.13247, section 5 (what the survey asks for)",
    claims=[CoversOnce()],
    worth_trying=["auto"],
)
@dataclass(frozen=True)
class Auto(Schedule):
    """Search for the plan that measured times predict to be the fastest.

    It decides what is merged, what is split, what may arrive late, and whether an all-reduce is the backend's or goes
    through workers that each reduce a share. It merges by size until the first iterations were timed and the network
    was probed, and plans again when steps take another time than before. Where the sentence compresses, tensors that
    are faster uncompressed are sent so. With `auto(false)` all averages have arrived when backward returns, as a
    GradScaler needs it.
    """

    beside_forward: bool = knob(True, doc="whether messages may arrive during the next forward pass")
    late: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    decides: ClassVar[bool] = True

    @property
    def finishes_late(self) -> bool:
        return self.beside_forward

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        if timing is None:
            return WFBP().plan(tensors, arrival)
        plain = worth_sending_plain(tensors, timing)
        return replace(search(tensors, arrival, timing, self.beside_forward).plan, plain=plain)


def worth_sending_plain(tensors: Sequence[TensorSpec], timing: Timing) -> frozenset[int]:
    """Return the indices of tensors whose compression takes no less time than sending them as they are."""
    if timing.compressed is None:
        return frozenset()
    coded, dense = timing.compressed, timing.price
    return frozenset(i for i, spec in enumerate(tensors) if dense.seconds(spec.nbytes) <= coded.seconds(spec.nbytes))
