"""The plan of Oobleck's pipelines: which nodes form which pipeline, made at first and made again after failures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.parallel.elastic.oobleck.batch import distribute_batch
from laconic.parallel.elastic.oobleck.templates import Template, plan_template, template_sizes
from laconic.registry import technique

Pipelines = tuple[tuple[int, ...], ...]
"""Of each pipeline its nodes, in the order of their stages."""


@dataclass(frozen=True)
class Oobleck:
    """What is planned once, before training.

    - `templates`: by their number of nodes, without gaps.
    - `failures`: that may happen at once.
    - `microbatches`: of the global batch, which never changes.
    """

    templates: Mapping[int, Template]
    failures: int
    microbatches: int

    def __post_init__(self) -> None:
        sizes = sorted(self.templates)
        if not sizes or sizes != list(range(sizes[0], sizes[-1] + 1)):
            raise LaconicError("templates are for numbers of nodes that follow each other")

    @property
    def fewest(self) -> int:
        """The nodes of the smallest template."""
        return min(self.templates)

    def seconds(self, sizes: Sequence[int]) -> float:
        """Return the time of an iteration of pipelines with so many nodes each: that of the slowest with its share."""
        shares = self.shares(sizes)
        return max(self.templates[size].seconds(share) for size, share in zip(sizes, shares, strict=True))

    def shares(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return how many microbatches each pipeline gets."""
        pace = [max(stage.seconds for stage in self.templates[size].stages) for size in sizes]
        return distribute_batch(pace, self.microbatches)

    def holders(self, pipelines: Pipelines) -> dict[int, frozenset[int]]:
        """Return the layers that each node holds."""
        return {
            node: self.templates[len(pipeline)].layers_of(place)
            for pipeline in pipelines
            for place, node in enumerate(pipeline)
        }


@technique(
    "oobleck",
    axis="parallel",
    paper="Jang et al., SOSP 2023",
    evidence="published",
    reproduces="the shares of effective time of Oobleck, Varuna and Bamboo on BERT-Large with a failure in ten minutes",
    why_no_word="It decides which nodes form which pipeline; what pipelines exchange is said by any sentence.",
)
def plan(
    layer_seconds: Sequence[float],
    nodes: int,
    fewest: int,
    failures: int = 1,
    microbatches: int = 32,
    gpus_per_node: int = 1,
) -> Oobleck:
    """Return the templates of which pipelines for any number of nodes that is left can be made up.

    - `layer_seconds`: forward and backward of a microbatch on one GPU.
    - `nodes`: of the cluster.
    - `fewest`: nodes with which the model fits into memory.
    - `failures`: that may happen at once; there is always one pipeline more.
    - `microbatches`: of the global batch.
    - `gpus_per_node`: of each node.
    """
    sizes = template_sizes(nodes, fewest, failures)
    templates = {size: plan_template(layer_seconds, size, gpus_per_node) for size in sizes}
    return Oobleck(templates, failures, microbatches)


def instantiate(oobleck: Oobleck, nodes: Sequence[int]) -> Pipelines:
    """Return pipelines that use all nodes, more of them than may fail at once, whose iteration is shortest.

    All multisets of template sizes that add up to the number of nodes are compared, with the batch distributed over
    them.
    """
    ways = [w for w in _multisets(sorted(oobleck.templates), len(nodes)) if len(w) > oobleck.failures]
    ways = [w for w in ways if len(w) <= oobleck.microbatches]
    if not ways:
        raise LaconicError(
            f"{len(nodes)} nodes cannot be made up of more than {oobleck.failures} pipelines of "
            f"{sorted(oobleck.templates)} nodes: add nodes"
        )
    sizes = min(ways, key=lambda way: (oobleck.seconds(way), way))
    return _cut(list(nodes), sizes)


def reconfigure(oobleck: Oobleck, pipelines: Pipelines, lost: Collection[int]) -> Pipelines:
    """Return the pipelines after some nodes were lost. Those that were not hit stay as they are, where possible.

    A pipeline that still has a template for its remaining nodes takes that. One that is too small borrows nodes from
    the biggest pipeline that can spare them; where none can, it is merged with the smallest other, and a merged
    pipeline for which there is no template is divided into two. Only where fewer pipelines than the promised number
    would remain although there are nodes for them, all are made anew.
    """
    left = [[node for node in pipeline if node not in lost] for pipeline in pipelines]
    left = [pipeline for pipeline in left if pipeline]
    while any(len(pipeline) < oobleck.fewest for pipeline in left):
        small = min(left, key=len)
        others = [pipeline for pipeline in left if pipeline is not small]
        if not others:
            raise LaconicError(
                f"{len(small)} nodes are left, and the model needs {oobleck.fewest}: go on from a checkpoint when "
                "there are more"
            )
        biggest = max(others, key=len)
        if len(biggest) > oobleck.fewest:
            small.append(biggest.pop())
            continue
        mate = min(others, key=len)
        mate += small
        left = [pipeline for pipeline in left if pipeline is not small]
    divided = [part for pipeline in left for part in _within_templates(pipeline, oobleck)]
    everyone = [node for pipeline in divided for node in pipeline]
    if len(divided) <= oobleck.failures and len(everyone) >= (oobleck.failures + 1) * oobleck.fewest:
        return instantiate(oobleck, everyone)
    return tuple(tuple(pipeline) for pipeline in divided)


def transfers(
    oobleck: Oobleck, before: Pipelines, after: Pipelines, lost: Collection[int]
) -> list[tuple[int, int, int]]:
    """Return (layer, from, to) for each layer that a node needs and does not hold; it is copied from the survivor that
    has sent least so far.

    It is an error where a layer has no survivor: then more failed at once than was promised.
    """
    held = {node: layers for node, layers in oobleck.holders(before).items() if node not in lost}
    sent = dict.fromkeys(held, 0)
    found = []
    for node, needed in sorted(oobleck.holders(after).items()):
        for layer in sorted(needed - held.get(node, frozenset())):
            sources = [other for other, layers in held.items() if layer in layers]
            if not sources:
                raise LaconicError(f"no surviving node holds layer {layer}: go on from a checkpoint")
            source = min(sources, key=lambda other: (sent[other], other))
            sent[source] += 1
            found.append((layer, source, node))
    return found


def _within_templates(pipeline: list[int], oobleck: Oobleck) -> list[list[int]]:
    """Return a pipeline as it is where there is a template for it, and otherwise the pieces it falls into."""
    if len(pipeline) in oobleck.templates:
        return [pipeline]
    ways = _multisets(sorted(oobleck.templates), len(pipeline))
    if not ways:
        raise LaconicError(f"there is no template for {len(pipeline)} nodes, nor templates that add up to it")
    return [list(part) for part in _cut(pipeline, min(ways, key=lambda way: (len(way), way)))]


def _multisets(sizes: Sequence[int], total: int) -> list[tuple[int, ...]]:
    """Return all multisets of sizes with this sum, each in ascending order."""
    found: dict[int, list[tuple[int, ...]]] = {0: [()]}
    for size in sizes:
        for reached in range(size, total + 1):
            found.setdefault(reached, []).extend((*way, size) for way in found.get(reached - size, []))
    return found.get(total, [])


def _cut(nodes: list[int], sizes: Sequence[int]) -> Pipelines:
    found, start = [], 0
    for size in sizes:
        found.append(tuple(nodes[start : start + size]))
        start += size
    return tuple(found)
