"""A search over schedules: merge or split, in order or by urgency, before or during the next forward pass.

Merging saves start-ups, splitting lets urgent bytes overtake; which pays depends on the model and the network. So the
search starts from several systems' plans and prices each candidate by simulating a repeated iteration.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laconic.cost.comm_plan import in_order_of_urgency, predicted_seconds
from laconic.registry import technique
from laconic.schedule.mg_wfbp import merged
from laconic.schedule.wfbp import WFBP
from laconic.values.comm_plan import CommPlan, Groups, in_pieces, of_one_dtype
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing

_SIZES = (0, 2**18, 2**20, 2**22, 25 * 2**20)  # bytes at which messages close, among the starting points


@dataclass(frozen=True)
class ScheduleChoice:
    """A point of the search. Without `piece` buckets are sent whole, and without `credit` in the order of readiness."""

    groups: Groups
    piece: int | None = None  # elements
    credit: int | None = None  # elements
    gated: bool = False
    halves: bool = False

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing) -> CommPlan:
        """Return the plan of messages that this choice stands for."""
        buckets = of_one_dtype(tensors, self.groups)
        messages = in_pieces(buckets, tensors, arrival, self.piece)
        widest = max(spec.dtype.itemsize for spec in tensors)
        credit = None if self.credit is None else self.credit * widest
        plan = CommPlan(tuple(tensors), buckets, messages, credit, self.gated, self.halves)
        if credit is None or timing.duplex:
            return plan
        return in_order_of_urgency(plan, arrival, timing)


@dataclass(frozen=True)
class SearchResult:
    """The best choice, its plan and predicted seconds, and the seconds of the starting points."""

    decision: ScheduleChoice
    plan: CommPlan
    seconds: float
    starts: tuple[float, ...]


@technique(
    "general_scheduler",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247, section 5.3 (an open problem)",
    why_no_word=(
        "The word that trains with this search is the schedule `auto`; `laconic iteration` runs the search alone."
    ),
)
def search(
    tensors: Sequence[TensorSpec],
    arrival: Sequence[int],
    timing: Timing,
    late: bool = True,
    trials: int = 24,
    seed: int = 0,
) -> SearchResult:
    """Find a plan by hill climbing over merges, cuts, piece size, credit and priority, from known systems' plans.

    Reading chosen: the survey states the problem, and the search is this library's. Without `late` no message may
    arrive after backward; then merging alone is left, whose dynamic program is exact for collectives of one dtype. 400
    tensors take 1.7 seconds of a busy core (bench/executor.py, as `auto`).
    """
    starts = dict.fromkeys(_starts(tensors, arrival, timing, late))
    priced = {decision: _price(decision, tensors, arrival, timing) for decision in starts}
    first = tuple(seconds for _, seconds in priced.values())
    best = min(priced, key=lambda decision: priced[decision][1])
    chance = random.Random(seed)
    for _ in range(trials if late else 0):
        tried = _moved(best, arrival, chance)
        if tried not in priced:
            priced[tried] = _price(tried, tensors, arrival, timing)
            if priced[tried][1] < priced[best][1]:
                best = tried
    return SearchResult(best, *priced[best], first)


def _price(
    decision: ScheduleChoice, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing
) -> tuple[CommPlan, float]:
    plan = decision.plan(tensors, arrival, timing)
    return plan, predicted_seconds(plan, arrival, timing)


def _starts(
    tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing, late: bool
) -> Iterator[ScheduleChoice]:
    """Yield the starting points: all tensors as one, each alone, merged exactly and by size; where messages may be
    late, also with gates, in halves, or in pieces by urgency."""
    best: Groups = tuple(map(tuple, merged(tensors, arrival, timing)))
    for groups in ((tuple(arrival),), best):
        yield ScheduleChoice(groups)
        if timing.halved is not None:  # every worker reduces a share
            yield ScheduleChoice(groups, halves=True)
    total = sum(spec.nbytes for spec in tensors)
    for size in [size for size in _SIZES if size < total]:
        groups = WFBP(size, first_bytes=size).buckets(tensors, arrival)
        yield ScheduleChoice(groups)
        if late:
            yield ScheduleChoice(groups, gated=True)
            if not timing.duplex:
                yield ScheduleChoice(groups, gated=True, halves=True)
    if late:
        alone: Groups = tuple((i,) for i in arrival)
        for piece in (1_000_000, 100_000):
            yield ScheduleChoice(alone, piece, 4 * piece, gated=True)
        yield ScheduleChoice(best, gated=True)


def _moved(decision: ScheduleChoice, arrival: Sequence[int], chance: random.Random) -> ScheduleChoice:
    """Return a random neighbour of a choice: two groups merged, one cut, or another piece size, credit or order."""
    groups = list(decision.groups)
    moves = ["cut"] if len(groups) < len(arrival) else []
    moves += ["merge"] if len(groups) > 1 else []
    if decision.gated:
        moves += ["piece", "credit", "priority"]
    move = chance.choice(moves) if moves else ""
    if move == "merge":
        k = chance.randrange(len(groups) - 1)
        groups[k : k + 2] = [groups[k] + groups[k + 1]]
    elif move == "cut":
        k = chance.choice([k for k, group in enumerate(groups) if len(group) > 1])
        at = chance.randrange(1, len(groups[k]))
        groups[k : k + 1] = [groups[k][:at], groups[k][at:]]
    elif move == "piece":
        return replace(decision, piece=_scaled(decision.piece or 4_000_000, chance), halves=False)
    elif move == "credit":
        return replace(decision, credit=_scaled(decision.credit or 4_000_000, chance), halves=False)
    elif move == "priority":
        return replace(decision, credit=4_000_000 if decision.credit is None else None, halves=False)
    return replace(decision, groups=tuple(groups))


def _scaled(value: int, chance: random.Random) -> int:
    return max(1024, value * 2 if chance.random() < 0.5 else value // 2)
