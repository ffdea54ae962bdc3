"""The iteration as a task graph: forward, backward, transfers, and the next forward; its period once it repeats.

Tensors are numbered in the order of the forward pass. Backward runs from the last to the first and may be split: the
gradient of a layer's input is what the layer before needs, that of its weights is what is sent. A transfer begins
when the gradients it carries exist, passes through its stages (an all-reduce is one, a push and a pull are two), and
the next forward pass waits for all transfers, or each layer for its own. The period is the distance between two
starts of the forward pass, which need not be the time from one start to the last end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from laconic.cost.lanes import COMPUTE, Lane, Task, serve
from laconic.registry import technique
from laconic.values.layer_times import LayerTimes


@dataclass(frozen=True)
class Stage:
    """A lane that a transfer occupies for some time, and the time it takes while computing, where that is longer."""

    lane: str
    seconds: float
    overlapped_seconds: float | None = None


@dataclass(frozen=True)
class Transfer:
    """Gradients (or a piece of one) that are sent together."""

    tensors: tuple[int, ...]
    stages: tuple[Stage, ...]
    nbytes: float = 0.0
    after_backward: bool = False
    after: tuple[int, ...] = ()  # other gradients that it waits for
    later: tuple[Stage, ...] = ()
    """Its stages after those of all transfers are over: the second half of a split all-reduce."""

    @cached_property
    def urgency(self) -> int:
        """The first of its tensors that the next forward pass needs."""
        return min(self.tensors)


@dataclass(frozen=True)
class Order:
    """How lanes serve transfers, and which transfers the next forward pass waits for."""

    lanes: Mapping[str, Lane] = field(default_factory=dict)
    gated: bool = False  # each layer waits for its own transfers; otherwise the first layer for all
    postponed: int = 0  # so many first layers compute their weights' gradients last, the first layer first


@technique(
    "iteration_dag",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247 (the DAG of synchronous SGD)",
    why_no_word="It is the model by which schedules are priced, and sends nothing itself; `laconic iteration` runs it.",
)
def period(layers: LayerTimes, transfers: Sequence[Transfer], order: Order | None = None) -> float:
    """Return the seconds from one iteration to the next, once they repeat, with transfers on their lanes."""
    return simulated(layers, transfers, order).period


@dataclass(frozen=True)
class Iteration:
    """One of many equal iterations: its length, and when each transfer begins and ends from the start of backward."""

    period: float
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    idle: tuple[tuple[float, float], ...] = ()
    """The periods (begin, end) in which nothing computed."""


def simulated(layers: LayerTimes, transfers: Sequence[Transfer], order: Order | None = None) -> Iteration:
    """Return the times of the iteration that repeats, from a backward pass to the end of the next forward pass.

    When that forward pass ends all of its layers' gradients have arrived, so that the next backward finds every lane
    empty: each iteration is like this one, and one is enough.
    """
    order = order or Order()
    tasks, spans = _graph(layers, transfers, order)
    times = serve(tasks, order.lanes)
    first, last = zip(*spans, strict=True) if spans else ((), ())
    computing = sorted((times.starts[n], times.ends[n]) for n, task in enumerate(tasks) if task.lane == COMPUTE)
    idle = tuple((end, start) for (_, end), (start, _) in pairwise(computing) if start > end)
    begins, ends = tuple(times.starts[n] for n in first), tuple(times.ends[n] for n in last)
    return Iteration(times.ends[-1], begins, ends, idle)


def _graph(layers: LayerTimes, transfers: Sequence[Transfer], order: Order) -> tuple[list[Task], list[tuple[int, int]]]:
    """Return all tasks, of which the last ends the forward pass, and each transfer's first and last task."""
    tasks: list[Task] = []

    def add(
        lane: str,
        seconds: float,
        needs: Sequence[int],
        of: Transfer | None = None,
        overlapped_seconds: float | None = None,
    ) -> int:
        urgency, nbytes = (0.0, 0.0) if of is None else (of.urgency, of.nbytes)
        tasks.append(Task(lane, seconds, tuple(needs), urgency, nbytes, overlapped_seconds))
        return len(tasks) - 1

    def pass_through(transfer: Transfer, stages: Sequence[Stage], after: list[int]) -> int:
        for stage in stages:
            after = [add(stage.lane, stage.seconds, after, transfer, stage.overlapped_seconds)]
        return after[0]

    ready, last = _backward(layers, order.postponed, add)
    spans: list[tuple[int, int]] = []
    for transfer in transfers:
        needed = dict.fromkeys((*transfer.tensors, *transfer.after))
        after = [last] if transfer.after_backward else [ready[i] for i in needed]
        spans.append((len(tasks), pass_through(transfer, transfer.stages, after)))
    if any(transfer.later for transfer in transfers):
        all_over = add("meeting", 0.0, [end for _, end in spans])
        for number, transfer in sorted(enumerate(transfers), key=lambda pair: pair[1].urgency):
            if transfer.later:
                spans[number] = (spans[number][0], pass_through(transfer, transfer.later, [all_over]))
    gates: dict[int, list[int]] = {}
    for transfer, (_, end) in zip(transfers, spans, strict=True):
        for i in transfer.tensors if order.gated else (0,):
            gates.setdefault(i, []).append(end)
    for i in range(layers.count):
        last = add(COMPUTE, layers.forward[i], [last, *gates.get(i, [])])
    return tasks, spans


def _backward(layers: LayerTimes, postponed: int, add) -> tuple[dict[int, int], int]:  # type: ignore[no-untyped-def]
    """Return the task that completes each tensor's gradient, and the last task of backward."""
    ready: dict[int, int] = {}
    chain: list[int] = []
    for i in reversed(range(layers.count)):
        seconds = layers.backward[i] - (layers.weight_seconds(i) if i < postponed else 0.0)
        chain = [add(COMPUTE, seconds, chain)]
        ready[i] = chain[0]
    for i in range(postponed):
        chain = [add(COMPUTE, layers.weight_seconds(i), chain)]
        ready[i] = chain[0]
    return ready, chain[0]
