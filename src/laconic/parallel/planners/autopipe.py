"""AutoPipe's planner: from the balanced cut, units are moved away from the stage that bounds the step of 1F1B (Liu et
al., IEEE CLUSTER 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.schedules.one_f_one_b import OneFOneB
from laconic.parallel.pipeline.timeline import Timeline, timeline
from laconic.parallel.planners.chain import balanced
from laconic.values.layer_graph import LayerGraph

Borders = tuple[int, ...]
"""The first unit of each stage, and how many units there are."""


@dataclass(frozen=True)
class AutoPipePlan:
    """The borders of stages, and what a step with them takes."""

    borders: Borders
    seconds: float


def autopipe(model: LayerGraph, stages: int, microbatches: int, network: Network | None = None) -> AutoPipePlan:
    """Cut a model into stages so that a step of 1F1B with communication is as short as moves of single units make it.

    The start is the cut whose slowest stage is fastest. The stage that waits least between its first and its last task
    in a simulated step bounds it, the master stage. Of its border units one moves to a neighbour, or one to each, and
    neighbours may pass their other border unit on; where none of this helps, stages that wait more are tried. The walk
    goes on from the best scheme from which it has not gone on yet, and ends when twice as many moves as there are
    stages bring nothing better: the best scheme found is the plan. Reading chosen: only the abstract was read; which
    stage is the master, how far units are passed on and when the walk ends are reconstructions.

    - `model`: its units, for a Transformer the attention and the feed-forward block of each layer, with times and bytes
      of one microbatch.
    - `network`: where the stages are; without one, messages take no time.
    """
    if stages > len(model.layers):
        raise LaconicError(f"{len(model.layers)} units cannot be cut into {stages} stages: cut the model finer")
    spans = balanced([unit.seconds for unit in model.layers], stages)
    borders = (*(span.start for span in spans), len(model.layers))
    best = AutoPipePlan(borders, simulated(model, borders, microbatches, network).seconds)
    frontier, seen, without_gain = {borders: best.seconds}, {borders}, 0
    while frontier and without_gain < 2 * stages:
        borders = min(frontier, key=lambda scheme: (frontier[scheme], scheme))
        del frontier[borders]
        without_gain += 1
        for stage in _by_waiting(simulated(model, borders, microbatches, network)):
            moves = [moved for moved in _moves(borders, stage) if moved not in seen]
            schemes = {moved: simulated(model, moved, microbatches, network).seconds for moved in moves}
            seen.update(moves)
            frontier |= schemes
            shortest = min(schemes, key=lambda moved: (schemes[moved], moved), default=borders)
            if schemes.get(shortest, math.inf) < best.seconds:
                best, without_gain = AutoPipePlan(shortest, schemes[shortest]), 0
                break
    return best


def simulated(model: LayerGraph, borders: Borders, microbatches: int, network: Network | None = None) -> Timeline:
    """Return the timeline of a step of 1F1B with stages between these borders."""
    stages = [model.layers[start:stop] for start, stop in pairwise(borders)]
    crossing = model.cut_bytes
    costs = StageCosts.of(
        [sum(unit.forward_seconds for unit in stage) for stage in stages],
        [sum(unit.backward_seconds for unit in stage) for stage in stages],
        activation_bytes=[crossing[border] for border in borders[1:-1]],
    )
    return timeline(OneFOneB().pipeline(len(stages), microbatches), costs, network)


def _by_waiting(run: Timeline) -> list[int]:
    """Return the stages by how long they wait between their first and their last task, the master stage first."""
    idle = [row[-1].end - row[0].begin - busy for row, busy in zip(run.bars, run.busy, strict=True)]
    return sorted(range(len(idle)), key=lambda stage: (idle[stage], stage))


def _moves(borders: Borders, stage: int) -> Iterator[Borders]:
    """Yield the schemes in which a unit of a stage has gone to one neighbour, or one to both, and units on from there.

    The first unit goes left across the stage's first border, and one across each border on the way to `left`; so do
    last units to the right.
    """
    for left, right in product(range(1, stage + 2), range(stage, len(borders) - 1)):
        crossed = [1 if left <= i <= stage else -1 if stage < i <= right else 0 for i in range(len(borders))]
        moved = tuple(border + by for border, by in zip(borders, crossed, strict=True))
        if any(crossed) and all(a < b for a, b in pairwise(moved)):
            yield moved
