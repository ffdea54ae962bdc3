"""Piper: stages of a graph of layers, each with a data and a tensor degree and with recomputation where memory asks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.parallel.planners.knapsack import fastest_within
from laconic.registry import technique


@dataclass(frozen=True)
class Configuration:
    """One ready-made way to run a layer on a number of devices: plain, say, or recomputed in its backward pass."""

    seconds: float
    """Of both passes of a microbatch."""
    weight_bytes: float
    microbatch_bytes: float
    """The memory on a device for each microbatch in flight."""
    fixed_bytes: float
    """The memory on a device besides: weights, their gradients, the optimizer's state."""
    border_bytes: float = 0.0
    """What it sends besides the activations, for each edge of the layer that another stage shares."""


@dataclass(frozen=True)
class PiperModel:
    """Layers with their configurations by tensor degree, and the bytes of a microbatch on every edge between layers."""

    layers: tuple[Mapping[int, Sequence[Configuration]], ...]
    edge_bytes: Mapping[tuple[int, int], float]

    def __post_init__(self) -> None:
        if not self.layers:
            raise LaconicError("a model needs at least one layer")
        if wrong := [edge for edge in self.edge_bytes if not 0 <= edge[0] < edge[1] < len(self.layers)]:
            raise LaconicError(
                f"the edge {wrong[0]} does not lead forward among {len(self.layers)} layers: list the layers in an "
                "order in which they can be computed"
            )


@dataclass(frozen=True)
class PiperStage:
    """Layers that `data` replicas of `tensor` devices each hold, with the number of the configuration of each layer."""

    layers: tuple[int, ...]
    data: int
    tensor: int
    chosen: tuple[int, ...]


@dataclass(frozen=True)
class PiperPlan:
    """Stages from the input to the output, and the time between the ends of two microbatches in the steady state."""

    stages: tuple[PiperStage, ...]
    seconds: float


@technique(
    "piper",
    axis="parallel",
    paper="Tarnawski, Narayanan, Phanishayee, NeurIPS 2021",
    why_no_word="It cuts a model into stages of different workers, and a sentence says what equal workers exchange.",
)
def piper(model: PiperModel, devices: int, microbatches: int, memory_bytes: float, bits_per_second: float) -> PiperPlan:
    """Cut a graph of layers into stages with data and tensor degrees so that the slowest stage is fastest.

    A dynamic program over the sets of layers that hold, with a layer, all that read its output: the best time with k
    devices and data degrees that add up to q, where the stage nearest the input is split off last. A stage of degree d
    with q replicas up to the output keeps ceil(q / d) microbatches in flight; which configuration each of its layers
    has is an exact knapsack over its memory (the authors' program solves easy ones exactly and others by a heuristic).
    The bytes that a configuration adds at a border count for every edge that another stage shares.

    - `devices`: the most that may be used.
    - `microbatches`: of a batch; a stage's data degree divides it.
    - `memory_bytes`: of one device.
    - `bits_per_second`: of the links between devices.
    """
    solver = _Solver(model, microbatches, memory_bytes, bits_per_second / 8)
    degrees = sorted({t for layer in model.layers for t in layer})
    shapes = [(t, d) for t in degrees for d in range(1, microbatches + 1) if not microbatches % d and t * d <= devices]
    best: dict[int, dict[tuple[int, int], tuple[float, int, tuple[int, int]]]] = {0: {(0, 0): (0.0, 0, (0, 0))}}
    sets = _output_sets(model)
    for whole in sets[1:]:
        found: dict[tuple[int, int], tuple[float, int, tuple[int, int]]] = {}
        for part in (part for part in sets if part != whole and part & whole == part):
            for t, d in shapes:
                for (k, q), (slowest, _, _) in best[part].items():
                    if k + t * d > devices or q + d > microbatches:
                        continue
                    key = (k + t * d, q + d)
                    reached = max(slowest, solver.seconds(whole & ~part, t, d, -(-(q + d) // d)))
                    if reached < found.get(key, (math.inf,))[0]:
                        found[key] = (reached, part, (t, d))
        best[whole] = found
    if not best[sets[-1]]:
        raise LaconicError(
            f"no cut of the {len(model.layers)} layers fits into {devices} devices of {memory_bytes / 2**30:g} GiB: "
            "give more devices, smaller microbatches or configurations that recompute"
        )
    (k, q), (seconds, _, _) = min(best[sets[-1]].items(), key=lambda entry: (entry[1][0], entry[0]))
    whole, stages = sets[-1], list[PiperStage]()
    while whole:
        _, part, (t, d) = best[whole][k, q]
        layers = tuple(_members(whole & ~part))
        stages.append(PiperStage(layers, d, t, solver.chosen(whole & ~part, t, d, -(-q // d))))
        whole, k, q = part, k - t * d, q - d
    return PiperPlan(tuple(stages), seconds)


class _Solver:
    """The time of a set of layers as one stage, and the configurations that give it."""

    def __init__(self, model: PiperModel, microbatches: int, memory_bytes: float, bytes_per_second: float) -> None:
        self._model = model
        self._microbatches = microbatches
        self._memory = memory_bytes
        self._rate = bytes_per_second
        self._solved: dict[tuple[int, int, int, int], tuple[float, tuple[int, ...]] | None] = {}

    def seconds(self, layers: int, tensor: int, data: int, in_flight: int) -> float:
        found = self._solve(layers, tensor, data, in_flight)
        return math.inf if found is None else found[0]

    def chosen(self, layers: int, tensor: int, data: int, in_flight: int) -> tuple[int, ...]:
        found = self._solve(layers, tensor, data, in_flight)
        return () if found is None else found[1]

    def _solve(self, layers: int, tensor: int, data: int, in_flight: int) -> tuple[float, tuple[int, ...]] | None:
        key = (layers, tensor, data, in_flight)
        if key not in self._solved:
            members = list(_members(layers))
            if all(self._model.layers[layer].get(tensor) for layer in members):
                options = [list(self._options(layer, layers, tensor, data, in_flight)) for layer in members]
                self._solved[key] = fastest_within(options, self._memory)
            else:
                self._solved[key] = None
        return self._solved[key]

    def _options(
        self, layer: int, layers: int, tensor: int, data: int, in_flight: int
    ) -> Iterator[tuple[float, float]]:
        """Yield seconds and bytes of a layer with each of its configurations."""
        border = [
            nbytes
            for (i, j), nbytes in self._model.edge_bytes.items()
            if layer in (i, j) and not (layers >> i & 1 and layers >> j & 1)
        ]
        for of in self._model.layers[layer][tensor]:
            sent = 2 * (sum(border) + of.border_bytes * len(border)) / data
            exchanged = 4 * (data - 1) / data * of.weight_bytes / self._microbatches
            seconds = of.seconds / data + (sent + exchanged) / self._rate
            yield seconds, of.microbatch_bytes * in_flight + of.fixed_bytes


def _output_sets(model: PiperModel) -> list[int]:
    """Return every set of layers that holds, with a layer, all that read it, as bits, smaller ones first."""
    readers = [sum(1 << j for i, j in model.edge_bytes if i == layer) for layer in range(len(model.layers))]
    found, newest = {0}, {0}
    while newest:
        newest = {
            known | 1 << layer
            for known in newest
            for layer, reading in enumerate(readers)
            if not known >> layer & 1 and known & reading == reading
        }
        found |= newest
    return sorted(found, key=lambda layers: (layers.bit_count(), layers))


def _members(layers: int) -> Iterator[int]:
    return (layer for layer in range(layers.bit_length()) if layers >> layer & 1)
