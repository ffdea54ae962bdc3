"""PipeDream's planner: stages of a chain, each with as many replicas as keep the slowest stage fastest (Narayanan et
al., SOSP 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.errors import LaconicError
from laconic.parallel.planners.chain import Matrix, MinMax, sums
from laconic.values.layer_graph import LayerGraph


@dataclass(frozen=True)
class Level:
    """A level of a cluster: how many of the level below it joins, and the rate of the links between these."""

    count: int
    bits_per_second: float

    def __post_init__(self) -> None:
        if self.count < 1 or self.bits_per_second <= 0:
            raise LaconicError("a level of a cluster joins at least one part, by links of a rate above 0")

    @property
    def bytes_per_second(self) -> float:
        return self.bits_per_second / 8


@dataclass(frozen=True)
class Stage:
    """The layers `start` to `stop` - 1, which `replicas` workers hold."""

    start: int
    stop: int
    replicas: int


@dataclass(frozen=True)
class Plan:
    """Stages in the order of layers, and the time between the ends of two batches where the pipeline is full."""

    stages: tuple[Stage, ...]
    seconds: float

    def __str__(self) -> str:
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def in_flight(self) -> int:
        """The batches that the input stage admits before the first one's backward: workers over its replicas."""
        return -(-sum(stage.replicas for stage in self.stages) // self.stages[0].replicas)


def pipedream(model: LayerGraph, levels: Sequence[Level]) -> Plan:
    """Cut a model into replicated stages so that the slowest stage, or transfer between stages, is fastest.

    With r replicas and links of B bytes a second, layers of T seconds and w bytes of weights take
    (T + 4 (r - 1) / r w / B) / r for a batch, and a cut across which a bytes of activations go takes 2 a / (B r), r of
    the stage behind it. Every level of the cluster is solved on its own, from the innermost: what a run of layers takes
    on one machine, by the best partition over the machine's GPUs, is what one replica takes on the level above.

    - `model`: profiled on one worker; for a cut, its layers stay in their order.
    - `levels`: of the cluster, from the innermost: `[Level(8, 10e9)]` are 8 workers whose links are all equal.
    """
    units = len(model.layers)
    weights = sums([layer.parameter_bytes for layer in model.layers])
    crossing = np.asarray(model.cut_bytes)
    below: Matrix = sums([layer.seconds for layer in model.layers])
    solved: list[MinMax] = []
    for number, level in enumerate(levels):
        starts = range(units) if number + 1 < len(levels) else (0,)
        seconds = _stages_of(below, weights, crossing, level)
        table = MinMax(units, level.count, seconds, range(1, level.count + 1), starts)
        below = np.vstack([table.bottlenecks(level.count), np.full((units + 1 - len(starts), units + 1), np.inf)])
        solved.append(table)
    if not np.isfinite(below[0, units]):
        raise LaconicError(f"{units} layers cannot be cut so that all workers of the cluster have a part of them")
    return Plan(tuple(_stages(solved, levels, 0, units)), float(below[0, units]))


def data_parallel_seconds(model: LayerGraph, levels: Sequence[Level]) -> float:
    """Return the time of a batch where every worker holds the whole model, by the planner's own formula."""
    weights = sum(layer.parameter_bytes for layer in model.layers)
    found = sum(layer.seconds for layer in model.layers)
    for level in levels:
        found = (found + 4 * (level.count - 1) / level.count * weights / level.bytes_per_second) / level.count
    return found


def _stages_of(below: Matrix, weights: Matrix, crossing: Matrix, level: Level) -> Callable[[int, int], Matrix]:
    """Return the function that tells what layers i to j - 1 take, at [i, j], on so many replicas, or the transfer of
    their input where that is longer. What the first stage reads comes over the links of the level above.

    - `below`: what the same layers take on one of the parts that the level joins.
    """

    def seconds(before: int, replicas: int) -> Matrix:
        exchange = 4 * (replicas - 1) / replicas * weights / level.bytes_per_second
        found: Matrix = (below + exchange) / replicas
        if before:
            found = np.maximum(found, 2 * crossing[:, None] / (level.bytes_per_second * replicas))
        return found

    return seconds


def _stages(solved: Sequence[MinMax], levels: Sequence[Level], start: int, stop: int, copies: int = 1) -> list[Stage]:
    """Return the stages of a run of layers, down to single workers, of which there are `copies` times as many."""
    if not solved:
        return [Stage(start, stop, copies)]
    found = []
    for span in solved[-1].spans(levels[len(solved) - 1].count, start, stop):
        found += _stages(solved[:-1], levels, span.start, span.stop, copies * span.devices)
    return found
