"""Choice of neighbouring tensors to send together, dense or sparsified, from a profile's times.

Tensors are numbered in the order of the forward pass; backward computes the last one's gradient first. A plan is groups
of numbers in the order in which they are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.comm_plan import Groups
from laconic.values.price import Price


@dataclass(frozen=True)
class SparseCosts:
    """Costs, in seconds, of messages that carry selected values.

    Selecting among x values takes `select`·x·log2 x. Gathering the selected values takes two messages, one of values
    and one of indices, each with a latency `alpha` and `beta` per byte.
    """

    workers: int
    alpha: float
    beta: float
    select: float
    density: float = 0.001
    bytes_each: int = 4

    def selecting(self, elements: int) -> float:
        return self.select * elements * math.log2(elements) if elements > 1 else 0.0

    def sending(self, elements: int) -> float:
        return 2 * (self.alpha + self.beta * self.bytes_each * self.workers * elements * self.density)


@dataclass(frozen=True)
class DenseCosts:
    """Costs, in seconds, of dense messages, with `bytes_each` bytes per element."""

    price: Price
    bytes_each: int = 4

    def selecting(self, elements: int) -> float:
        return 0.0

    def sending(self, elements: int) -> float:
        return self.price.seconds(self.bytes_each * elements)


Costs = SparseCosts | DenseCosts


@dataclass(frozen=True)
class MergeTimeline:
    """The times, from the start of backward, when each group's selection ends and when its message starts and ends."""

    selected: tuple[float, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def finish(self) -> float:
        return self.ends[-1]

    @property
    def not_hidden(self) -> float:
        """The seconds of communication after all computation is over."""
        return self.ends[-1] - self.selected[-1]


def timeline(groups: Groups, sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> MergeTimeline:
    """Return the timeline of a plan, in which selection interrupts backward and messages are sent one after another."""
    now, free = 0.0, 0.0
    selected, starts, ends = [], [], []
    for group in groups:
        elements = sum(sizes[i] for i in group)
        now += sum(backward[i] for i in group) + costs.selecting(elements)
        start = max(now, free)
        free = start + costs.sending(elements)
        selected.append(now)
        starts.append(start)
        ends.append(free)
    return MergeTimeline(tuple(selected), tuple(starts), tuple(ends))


DENSITY = 0.01
SPARSIFIER = f"topk({DENSITY})+ef"
"""The compressor whose messages are merged where nobody names another."""


@technique(
    "omgs_sgd",
    axis="schedule",
    paper="Shi, Wang, Chu, Li, Qin, Liu, Zhao, INFOCOM 2020",
    evidence="fixture",
    reproduces="omgs_sgd.json: groups and exposed time, ten cases",
    why_no_word=(
        "Its rule needs the times of selecting and of sending apart, which are not measured in a training; "
        "`flat+topk(0.001)+ef / mg_wfbp` selects once in each merged message, merged as dense ones would be, and "
        "trains."
    ),
)
def greedy(sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> Groups:
    """Merge a tensor with the next where waiting for it adds less than the start-up saves; for layer-wise topk+ef.

    It goes from the last tensor to the first. Each group is one buffer with one selection and one message. Reading
    chosen: the published program's rule; `exact` finds the best plan of the same model, which this need not be. What it
    gains was not measured in a training.
    """
    check(sizes, backward)
    groups: list[tuple[int, ...]] = []
    own, numel, busy = (), 0, 0.0  # type: tuple[int, ...], int, float
    now, free = 0.0, 0.0  # when computing and the network have finished the groups before
    for i in reversed(range(len(sizes))):
        if own:
            selected = now + busy + costs.selecting(numel)
            both, next_ = numel + sizes[i], sizes[i]
            more = costs.selecting(both) - costs.selecting(numel) - costs.selecting(next_)
            waits = backward[i] + more - (max(selected, free) - selected)
            saves = costs.sending(numel) + costs.sending(next_) - costs.sending(both)
            if waits >= saves:
                groups.append(own)
                now, free = selected, max(selected, free) + costs.sending(numel)
                own, numel, busy = (), 0, 0.0
        own, numel, busy = (*own, i), numel + sizes[i], busy + backward[i]
    return (*groups, own)


def exact_dense(nbytes: Sequence[float], backward: Sequence[float], price: Price) -> Groups:
    """Return the plan that `exact` finds, for dense messages, where computing does not depend on the groups.

    It is a dynamic program over the beginning of the last group: E_j = min over k > j of max(E_k, r_j) + A + B·(p_j + …
    + p_{k-1}), where E_j is when tensors j and above have arrived, r_j when the gradient of j is ready, p its bytes,
    and A + B·m the price of m bytes.
    """
    check(nbytes, backward)
    count = len(nbytes)
    ready = np.cumsum(np.asarray(backward, dtype=float)[::-1])[::-1]
    before = np.concatenate([[0.0], np.cumsum(np.asarray(nbytes, dtype=float))])
    ends, chosen = np.zeros(count + 1), np.zeros(count, dtype=int)
    sending = price.startup_seconds + price.seconds_per_byte * before
    for j in reversed(range(count)):
        found = np.maximum(ends[j + 1 :], ready[j]) + sending[j + 1 :]
        chosen[j] = j + 1 + int(found.argmin())
        ends[j] = found[chosen[j] - j - 1] - price.seconds_per_byte * before[j]
    groups: list[tuple[int, ...]] = []
    j = 0
    while j < count:
        groups.append(tuple(reversed(range(j, int(chosen[j])))))
        j = int(chosen[j])
    return tuple(reversed(groups))


def exact(sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> Groups:
    """Return the plan of neighbouring groups that finishes first.

    Of all partial plans up to a tensor, those are kept that no other beats in both computation and network time.
    """
    check(sizes, backward)
    order = tuple(reversed(range(len(sizes))))
    elements = list(accumulate((sizes[i] for i in order), initial=0))
    computing = list(accumulate((backward[i] for i in order), initial=0.0))
    plans = [[_PartialPlan(0.0, 0.0)]]
    for end in range(1, len(order) + 1):
        found = []
        for begin, before in enumerate(plans):
            merged = elements[end] - elements[begin]
            busy, sending = computing[end] - computing[begin] + costs.selecting(merged), costs.sending(merged)
            found += [(p.ready + busy, max(p.ready + busy, p.free) + sending, begin, i) for i, p in enumerate(before)]
        plans.append(_undominated(found, plans))
    plan: _PartialPlan | None = min(plans[-1], key=lambda plan: plan.free)
    groups: list[tuple[int, ...]] = []
    end = len(order)
    while plan is not None and plan.before is not None:
        groups.append(order[plan.begin : end])
        plan, end = plan.before, plan.begin
    return tuple(reversed(groups))


@dataclass(frozen=True)
class _PartialPlan:
    """A plan up to some tensor: when computing is ready and the network free, and where its last group begins."""

    ready: float
    free: float
    begin: int = 0
    before: _PartialPlan | None = None


def _undominated(found: list[tuple[float, float, int, int]], plans: list[list[_PartialPlan]]) -> list[_PartialPlan]:
    kept: list[_PartialPlan] = []
    for ready, free, begin, which in sorted(found):
        if not kept or free < kept[-1].free:
            kept.append(_PartialPlan(ready, free, begin, plans[begin][which]))
    return kept


def check(sizes: Sequence[float], backward: Sequence[float]) -> None:
    """Refuse anything but one size and one time for every tensor, of which there must be at least one."""
    if not len(sizes) == len(backward) > 0:
        raise LaconicError(f"{len(sizes)} sizes and {len(backward)} times; give one of each for every tensor")
