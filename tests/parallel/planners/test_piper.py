"""Piper against every cut, degree and configuration, and against the min-max partition of a chain."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from itertools import pairwise, product

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.parallel.planners.chain import MinMax
from laconic.parallel.planners.knapsack import fastest_within
from laconic.parallel.planners.piper import Configuration, PiperModel, PiperPlan, piper

RATE = 8e9  # bits a second: 1 GB/s


def drawn(seed: int, layers: int, edges: list[tuple[int, int]] | None = None, recompute: bool = True) -> PiperModel:
    """Layers with tensor degrees 1, 2 and 4 (one of them with 1 alone), each plain and, where asked, recomputed."""
    draw = random.Random(seed)
    made: list[Mapping[int, list[Configuration]]] = []
    for layer in range(layers):
        seconds, weights, held = draw.uniform(0.01, 0.05), draw.uniform(1e6, 4e7), draw.uniform(1e8, 5e8)
        ways: dict[int, list[Configuration]] = {}
        for t in (1, 2, 4) if layer != 1 else (1,):
            of = (weights / t, held / t, 4 * weights / t, 1e6 * (t - 1))
            ways[t] = [Configuration(seconds / t**0.8, *of)]
            if recompute:
                ways[t].append(Configuration(4 / 3 * seconds / t**0.8, of[0], held / t / 5, of[2], of[3]))
        made.append(ways)
    pairs = list(pairwise(range(layers))) if edges is None else edges
    return PiperModel(tuple(made), {pair: draw.uniform(1e5, 2e7) for pair in pairs})


def stage_seconds(model: PiperModel, layers: set[int], t: int, d: int, batches: int, y: int, memory: float) -> float:
    """The best of every choice of configurations that fits, from the formula."""
    if any(t not in model.layers[layer] for layer in layers):
        return math.inf
    best = math.inf
    for choice in product(*(model.layers[layer][t] for layer in layers)):
        if sum(of.microbatch_bytes * y + of.fixed_bytes for of in choice) > memory:
            continue
        total = 0.0
        for layer, of in zip(layers, choice, strict=True):
            total += of.seconds / d + 4 * (d - 1) / d * of.weight_bytes / batches / (RATE / 8)
            for pair, nbytes in model.edge_bytes.items():
                if layer in pair and not set(pair) <= layers:
                    total += 2 * (nbytes + of.border_bytes) / d / (RATE / 8)
        best = min(best, total)
    return best


def brute_force(model: PiperModel, devices: int, batches: int, memory: float) -> float:
    """The best over every assignment of layers to stages that no edge goes backwards in, and all degrees."""
    count = len(model.layers)
    shapes = [(t, d) for t in (1, 2, 4) for d in range(1, batches + 1) if batches % d == 0 and t * d <= devices]
    known: dict[tuple[frozenset[int], int, int, int], float] = {}

    def seconds(layers: set[int], t: int, d: int, y: int) -> float:
        key = (frozenset(layers), t, d, y)
        if key not in known:
            known[key] = stage_seconds(model, layers, t, d, batches, y, memory)
        return known[key]

    def assignments() -> Iterator[list[set[int]]]:
        for at in product(range(min(count, devices)), repeat=count):
            stages = max(at) + 1
            if len(set(at)) == stages and all(at[i] <= at[j] for i, j in model.edge_bytes):
                yield [{layer for layer in range(count) if at[layer] == stage} for stage in range(stages)]

    best = math.inf
    for stages in assignments():
        for degrees in product(shapes, repeat=len(stages)):
            if sum(t * d for t, d in degrees) > devices or sum(d for _, d in degrees) > batches:
                continue
            slowest = 0.0
            for i, (layers, (t, d)) in enumerate(zip(stages, degrees, strict=True)):
                downstream = sum(degree for _, degree in degrees[i:])
                slowest = max(slowest, seconds(layers, t, d, math.ceil(downstream / d)))
                if slowest >= best:
                    break
            best = min(best, slowest)
    return best


def priced(model: PiperModel, plan: PiperPlan, batches: int, memory: float) -> float:
    """The time of the plan's slowest stage with the configurations that it names, which must fit."""
    slowest = 0.0
    for i, stage in enumerate(plan.stages):
        y = math.ceil(sum(later.data for later in plan.stages[i:]) / stage.data)
        named = {
            layer: {stage.tensor: [model.layers[layer][stage.tensor][choice]]}
            for layer, choice in zip(stage.layers, stage.chosen, strict=True)
        }
        only = PiperModel(tuple(named.get(i, of) for i, of in enumerate(model.layers)), model.edge_bytes)
        slowest = max(slowest, stage_seconds(only, set(stage.layers), stage.tensor, stage.data, batches, y, memory))
    return slowest


def best_of(model: PiperModel, devices: int, batches: int, memory: float) -> float:
    try:
        return piper(model, devices, batches, memory, RATE).seconds
    except LaconicError:
        return math.inf


@pytest.mark.technique("piper", check=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("layers", "devices", "batches"), [(3, 4, 4), (5, 3, 6), (6, 4, 4)])
@pytest.mark.parametrize("memory", [6e8, 1.5e9, 4e9])
def test_no_cut_degree_or_recomputation_is_better(
    seed: int, layers: int, devices: int, batches: int, memory: float
) -> None:
    model = drawn(seed, layers)
    expected = brute_force(model, devices, batches, memory)
    assert best_of(model, devices, batches, memory) == pytest.approx(expected, rel=1e-12)
    if expected < math.inf:
        plan = piper(model, devices, batches, memory, RATE)
        assert sum(stage.data * stage.tensor for stage in plan.stages) <= devices
        assert sorted(layer for stage in plan.stages for layer in stage.layers) == list(range(layers))
        assert priced(model, plan, batches, memory) == pytest.approx(plan.seconds, rel=1e-12)


@pytest.mark.technique("piper", check=1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "edges",
    [[(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], [(0, 2), (1, 2), (2, 4), (3, 4)], [(0, 3), (1, 3), (1, 4), (2, 4)]],
    ids=["diamond", "two inputs", "two outputs"],
)
@pytest.mark.parametrize("memory", [1e9, 4e9])
def test_branches_are_divided_as_well_as_any_assignment(seed: int, edges: list[tuple[int, int]], memory: float) -> None:
    model = drawn(seed, 5, edges)
    expected = brute_force(model, 4, 4, memory)
    assert best_of(model, 4, 4, memory) == pytest.approx(expected, rel=1e-12)


@pytest.mark.technique("piper", check=2)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("layers", "devices"), [(4, 2), (9, 4), (12, 5)])
def test_without_degrees_recomputation_and_limits_it_is_the_min_max_partition(
    seed: int, layers: int, devices: int
) -> None:
    full = drawn(seed, layers, recompute=False)
    model = PiperModel(tuple({1: of[1]} for of in full.layers), full.edge_bytes)
    borders = [0.0, *(2 * full.edge_bytes[pair] / (RATE / 8) for pair in pairwise(range(layers))), 0.0]
    times = np.cumsum([0.0, *(of[1][0].seconds for of in model.layers)])
    stage = times[None, :] - times[:, None] + np.array(borders)[None, :] + np.array(borders)[:, None]
    table = MinMax(layers, devices, lambda first, width: stage)
    expected = min(table.bottleneck(k, 0, layers) for k in range(1, devices + 1))
    plan = piper(model, devices, 2 * math.lcm(*range(1, devices + 1)), math.inf, RATE)
    assert plan.seconds <= expected * (1 + 1e-12), "data degrees are allowed here and cannot harm"
    alone = piper(model, devices, _prime_above(devices), math.inf, RATE)
    assert alone.seconds == pytest.approx(expected, rel=1e-12)
    assert {s.data * s.tensor for s in alone.stages} == {1}


def _prime_above(devices: int) -> int:
    """A number of microbatches that no data degree but 1 divides within the devices."""
    return next(n for n in range(devices + 1, 100) if all(n % k for k in range(2, n)))


@pytest.mark.technique("piper", check=3)
@pytest.mark.parametrize("seed", range(6))
def test_less_memory_never_helps_and_leave_to_recompute_never_harms(seed: int) -> None:
    layers = 4 + seed % 3
    without, allowed = drawn(seed, layers, recompute=False), drawn(seed, layers)
    tight, bound, helped = [], 0, 0
    memory = 8e9
    while memory > 2e8:
        tight.append(best_of(allowed, 4, 4, memory))
        plain = best_of(without, 4, 4, memory)
        assert tight[-1] <= plain
        helped += tight[-1] < plain
        memory /= 2
    assert tight == sorted(tight)
    bound = sum(after > before for before, after in pairwise(tight))
    assert bound, "memory mattered"
    assert helped, "so did recomputation"


@pytest.mark.parametrize("seed", range(20))
def test_the_knapsack_is_exact(seed: int) -> None:
    draw = random.Random(seed)
    options = [[(draw.uniform(1, 2), draw.uniform(1, 9)) for _ in range(draw.randint(1, 3))] for _ in range(7)]
    for capacity in (10.0, 20.0, 30.0, 40.0):
        fits = [choice for choice in product(*options) if sum(nbytes for _, nbytes in choice) <= capacity]
        found = fastest_within(options, capacity)
        if not fits:
            assert found is None
            continue
        assert found is not None
        assert found[0] == pytest.approx(min(sum(seconds for seconds, _ in choice) for choice in fits))
        named = [of[i] for of, i in zip(options, found[1], strict=True)]
        assert sum(nbytes for _, nbytes in named) <= capacity
        assert sum(seconds for seconds, _ in named) == pytest.approx(found[0])


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(LaconicError, match="configurations that recompute"):
        piper(drawn(0, 3), 2, 4, 1e6, RATE)
