"""Templates of pipelines: for each number of nodes, which layers form a stage and how many GPUs a stage has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Stage:
    """Consecutive layers on GPUs of one node.

    - `layers`: the first, and the one after the last.
    - `node`: the place of the node in its pipeline.
    - `gpus`: a power of two.
    - `seconds`: for a microbatch, forward and backward.
    """

    layers: tuple[int, int]
    node: int
    gpus: int
    seconds: float


@dataclass(frozen=True)
class Template:
    """A pipeline for a number of nodes, by its stages in order."""

    nodes: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        ends = [0, *(stage.layers[1] for stage in self.stages)]
        starts = [stage.layers[0] for stage in self.stages]
        places = [stage.node for stage in self.stages]
        if not self.stages or starts != ends[:-1] or any(a >= b for a, b in (s.layers for s in self.stages)):
            raise LaconicError("the stages of a template hold all layers, each once and in order")
        if places != sorted(places) or set(places) != set(range(self.nodes)):
            raise LaconicError(f"the stages of a template of {self.nodes} nodes use each of its nodes, in order")

    def seconds(self, microbatches: int) -> float:
        """Return the time of an iteration: one microbatch passes all stages, which fills and drains the pipeline, and
        for the others the slowest stage sets the pace."""
        times = [stage.seconds for stage in self.stages]
        return sum(times) + (microbatches - 1) * max(times)

    def layers_of(self, node: int) -> frozenset[int]:
        """Return the layers that a node of this pipeline holds."""
        return frozenset(k for stage in self.stages if stage.node == node for k in range(*stage.layers))


def template_sizes(nodes: int, fewest: int, failures: int) -> range:
    """Return the sizes of pipelines for which templates are planned.

    With sizes from the fewest to one below twice that, every number of nodes from the fewest on is a sum of them: what
    is too large for one template is divided. The paper states a condition for how many templates are needed; this is
    the reading that holds after any failures, also when fewer pipelines than were promised are left.

    - `nodes`: of the cluster.
    - `fewest`: with which the model fits into memory.
    - `failures`: to be survived at the same time, for which one more pipeline than that is needed.
    """
    if nodes < (failures + 1) * fewest:
        raise LaconicError(
            f"{nodes} nodes cannot hold {failures + 1} pipelines of at least {fewest} nodes: give more nodes, or ask "
            "for fewer failures"
        )
    return range(fewest, min(2 * fewest - 1, nodes) + 1)


_Cuts = tuple[tuple[int, int, int], ...]
"""The stages of a node: first layer, end, GPUs."""


def plan_template(
    layer_seconds: Sequence[float], nodes: int, gpus_per_node: int = 1, microbatches: int = 16
) -> Template:
    """Return the template for so many nodes whose iteration is shortest, by divide and conquer with a memory.

    A stage stays inside a node, on a power of two of its GPUs, among which its microbatch is divided. The paper's score
    is the fill, the slots of the slowest stage and the drain; here fill and drain together are one pass.

    - `layer_seconds`: forward and backward of a microbatch on one GPU.
    - `nodes`, `gpus_per_node`: what the pipeline has.
    - `microbatches`: of an iteration.
    """
    if len(layer_seconds) < nodes:
        raise LaconicError(f"{len(layer_seconds)} layers cannot be divided among {nodes} nodes, which need one each")
    before = [0.0]
    for seconds in layer_seconds:
        before.append(before[-1] + seconds)
    powers = [1 << k for k in range(gpus_per_node.bit_length())]
    spans = [(a, b) for a in range(len(layer_seconds)) for b in range(a + 1, len(before))]
    paces = sorted({(before[b] - before[a]) / gpus for a, b in spans for gpus in powers})
    chosen, least = None, math.inf
    for pace in paces:
        if (microbatches - 1) * pace >= least:
            break
        found = _divide(before, nodes, gpus_per_node, pace)
        if found is not None and found[0] + (microbatches - 1) * pace < least:
            chosen, least = found[1], found[0] + (microbatches - 1) * pace
    if chosen is None:
        raise LaconicError(f"{gpus_per_node} GPUs cannot be divided among the layers of one node: give fewer")
    return Template(
        nodes,
        tuple(
            Stage((a, b), node, gpus, (before[b] - before[a]) / gpus)
            for node, cuts in enumerate(chosen)
            for a, b, gpus in cuts
        ),
    )


def _divide(
    before: Sequence[float], nodes: int, gpus_per_node: int, pace: float
) -> tuple[float, tuple[_Cuts, ...]] | None:
    """Return the stages of each node, none slower than the pace, whose times add up to least, and that sum; None where
    there are none. All GPUs of a node are used.

    - `before`: the time of all layers before each, and of all.
    """
    end = len(before) - 1

    @cache
    def within(first: int, last: int, gpus: int) -> tuple[float, _Cuts] | None:
        best: tuple[float, _Cuts] | None = None
        if gpus & (gpus - 1) == 0 and (seconds := (before[last] - before[first]) / gpus) <= pace:
            best = seconds, ((first, last, gpus),)
        for cut in range(first + 1, last):
            for mine in (1 << k for k in range((gpus - 1).bit_length())):
                head = (before[cut] - before[first]) / mine
                if head <= pace and mine < gpus and (rest := within(cut, last, gpus - mine)) is not None:
                    best = min(filter(None, (best, (head + rest[0], ((first, cut, mine), *rest[1])))))
        return best

    @cache
    def across(first: int, remaining: int) -> tuple[float, tuple[_Cuts, ...]] | None:
        if remaining == 1:
            only = within(first, end, gpus_per_node)
            return None if only is None else (only[0], (only[1],))
        best: tuple[float, tuple[_Cuts, ...]] | None = None
        for cut in range(first + 1, end - remaining + 2):
            head = within(first, cut, gpus_per_node)
            rest = None if head is None else across(cut, remaining - 1)
            if head is not None and rest is not None:
                best = min(filter(None, (best, (head[0] + rest[0], (head[1], *rest[1])))))
        return best

    return across(0, nodes)
