"""The iteration as a task graph: forward, backward, transfers, and the next forward; its period once it repeats.

Tensors are numbered in the order of the forward pass. Backward runs from the last to the first and may be split: the
gradient of a layer's input is what the layer before needs, that of its weights is what travels. A transfer leaves
when the gradients it carries exist, passes through its stages (an all-reduce is one, a push and a pull are two), and
the next forward pass waits for all transfers, or each layer for its own. The period is the distance between two
starts of the forward pass, which need not be the time from one start to the last end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.schedule.lanes import Lane, Task, serve

COMPUTE = "compute"
_ITERATIONS = 9
_SETTLED = 4  # iterations after which periods are averaged


@dataclass(frozen=True)
class Layers:
    """What each tensor's layer takes, in seconds, and how many bytes its gradient has."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    nbytes: tuple[float, ...]
    weights: tuple[float, ...] = ()
    """Of backward, what the gradients of weights take; empty: half of it."""

    def __post_init__(self) -> None:
        lengths = {len(self.forward), len(self.backward), len(self.nbytes), len(self.weights) or len(self.forward)}
        if len(lengths) != 1 or not self.forward:
            raise LaconicError(f"layers need as many forward and backward times as sizes, not {sorted(lengths)}")

    @property
    def count(self) -> int:
        return len(self.forward)

    @property
    def compute_seconds(self) -> float:
        return sum(self.forward) + sum(self.backward)

    def weight_seconds(self, i: int) -> float:
        return self.weights[i] if self.weights else self.backward[i] / 2


@dataclass(frozen=True)
class Stage:
    """A lane that a transfer takes for some time."""

    lane: str
    seconds: float


@dataclass(frozen=True)
class Transfer:
    """Gradients (or a piece of one) that travel together."""

    tensors: tuple[int, ...]
    stages: tuple[Stage, ...]
    nbytes: float = 0.0
    after_backward: bool = False
    later: tuple[Stage, ...] = ()
    """What happens to it when the stages of all transfers are over: the second half of a split all-reduce."""

    @property
    def urgency(self) -> int:
        """The first of its tensors that the next forward pass needs."""
        return min(self.tensors)


@dataclass(frozen=True)
class Order:
    """How transfers are served, and what the next forward pass waits for."""

    lanes: Mapping[str, Lane] = field(default_factory=dict)
    gated: bool = False  # each layer waits for its own; otherwise the first for all
    postponed: int = 0  # so many first layers compute their weights' gradients last, the first of them first


@technique("iteration_dag", axis="schedule", paper="Shi et al., arXiv 2005.13247 (the DAG of synchronous SGD)")
def period(layers: Layers, transfers: Sequence[Transfer], order: Order | None = None) -> float:
    """Seconds from one iteration to the next, once they repeat: forward, backward and transfers over their lanes."""
    order = order or Order()
    tasks, begins = _graph(layers, transfers, order, _ITERATIONS)
    times = serve(tasks, order.lanes)
    starts = [times.starts[begin] for begin in begins]
    return (starts[-1] - starts[_SETTLED]) / (len(starts) - 1 - _SETTLED)


def _graph(
    layers: Layers, transfers: Sequence[Transfer], order: Order, iterations: int
) -> tuple[list[Task], list[int]]:
    tasks: list[Task] = []
    begins: list[int] = []

    def add(lane: str, seconds: float, needs: Sequence[int], urgency: float = 0.0, nbytes: float = 0.0) -> int:
        tasks.append(Task(lane, seconds, tuple(needs), urgency, nbytes))
        return len(tasks) - 1

    arrived: dict[int, list[int]] = {}
    last: int | None = None
    for _ in range(iterations):
        everything = list(dict.fromkeys(n for own in arrived.values() for n in own))
        for i in range(layers.count):
            gates = arrived.get(i, []) if order.gated else everything if i == 0 else []
            last = add(COMPUTE, layers.forward[i], [*([] if last is None else [last]), *gates])
            if i == 0:
                begins.append(last)
        assert last is not None
        ready, last = _backward(layers, order.postponed, last, add)
        firsts = []
        for transfer in transfers:
            at = [last] if transfer.after_backward else [ready[i] for i in transfer.tensors]
            for stage in transfer.stages:
                at = [add(stage.lane, stage.seconds, at, transfer.urgency, transfer.nbytes)]
            firsts.append(at[0])
        arrived = {}
        for transfer, end in sorted(zip(transfers, firsts, strict=True), key=lambda pair: pair[0].urgency):
            if transfer.later:
                at = firsts
                for stage in transfer.later:
                    at = [add(stage.lane, stage.seconds, at, transfer.urgency, transfer.nbytes)]
                end = at[0]
            for i in transfer.tensors:
                arrived.setdefault(i, []).append(end)
    return tasks, begins


def _backward(layers: Layers, postponed: int, last: int, add) -> tuple[dict[int, int], int]:  # type: ignore[no-untyped-def]
    """Which task ends each tensor's gradient, and the last of all."""
    ready: dict[int, int] = {}
    for i in reversed(range(layers.count)):
        if i >= postponed:
            last = ready[i] = add(COMPUTE, layers.backward[i], [last])
        else:
            last = add(COMPUTE, layers.backward[i] - layers.weight_seconds(i), [last])
    for i in range(postponed):
        last = ready[i] = add(COMPUTE, layers.weight_seconds(i), [last])
    return ready, last
