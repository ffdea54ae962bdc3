"""PipeDream's planner: the paper's configurations from the authors' profile, and against every configuration."""

from __future__ import annotations

import pytest

from laconic.parallel.planners.pipedream import Level, data_parallel_seconds, pipedream
from laconic.profile.inputs.pipedream import read
from laconic.values.layer_graph import LayerGraph
from tests.data import folder_of
from tests.parallel.planners.chains import compositions, drawn_chain


@pytest.mark.technique("pipedream", check=1)
@pytest.mark.evidence("pipedream")
def test_vgg_16_is_planned_as_the_paper_shows() -> None:
    """7-1 and 15-1: the replicated stage holds convolutions only, and every linear layer is with one worker, which has
    the last convolutions besides (the classifier alone would be 2.36 times as fast as data parallelism, not 2.75)."""
    model = read(folder_of("pipedream") / "vgg16.txt")
    assert sum(layer.seconds for layer in model.layers) == pytest.approx(0.672, abs=1e-3)
    assert sum(layer.parameter_bytes for layer in model.layers) == pytest.approx(553e6, rel=1e-3)

    eight = pipedream(model, [Level(8, 10e9)])
    assert str(eight) == "7-1"
    assert data_parallel_seconds(model, [Level(8, 10e9)]) / eight.seconds == pytest.approx(2.7, rel=0.03)
    sixteen = pipedream(model, [Level(16, 25e9)])
    assert str(sixteen) == "15-1"
    for plan in (eight, sixteen):
        replicated, alone = (model.layers[stage.start : stage.stop] for stage in plan.stages)
        assert not any("Linear" in layer.name for layer in replicated)
        assert sum("Linear" in layer.name for layer in alone) == 3
        assert plan.in_flight == 2


def _seconds(model: LayerGraph, lengths: tuple[int, ...], replicas: tuple[int, ...], bytes_per_second: float) -> float:
    """The slowest of stages and transfers, by the formulas."""
    slowest, start = 0.0, 0
    for length, r in zip(lengths, replicas, strict=True):
        layers = model.layers[start : start + length]
        sent = 4 * (r - 1) / r * sum(layer.parameter_bytes for layer in layers) / bytes_per_second
        slowest = max(slowest, (sum(layer.seconds for layer in layers) + sent) / r)
        if start:
            slowest = max(slowest, 2 * model.layers[start - 1].output_bytes / (bytes_per_second * r))
        start += length
    return slowest


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bits_per_second", [1e9, 10e9, 1e12])
def test_no_other_configuration_is_faster(seed: int, bits_per_second: float) -> None:
    model, workers = drawn_chain(seed, 5), 4 + seed % 3
    plan = pipedream(model, [Level(workers, bits_per_second)])
    every = (
        _seconds(model, lengths, replicas, bits_per_second / 8)
        for stages in range(1, 6)
        for lengths in compositions(5, stages)
        for replicas in compositions(workers, stages)
    )
    assert plan.seconds == pytest.approx(min(every), rel=1e-12)
    lengths = tuple(stage.stop - stage.start for stage in plan.stages)
    replicas = tuple(stage.replicas for stage in plan.stages)
    assert _seconds(model, lengths, replicas, bits_per_second / 8) == pytest.approx(plan.seconds, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("within", "between"), [(80e9, 8e9), (2e9, 20e9), (8e9, 80e9)])
def test_servers_of_several_gpus_are_planned_from_the_inside(seed: int, within: float, between: float) -> None:
    """Two servers of two GPUs: the best of one replicated server, and of two servers in a row, each planned alone."""
    model = drawn_chain(seed, 6)
    inner, outer = Level(2, within), Level(2, between)

    def server(start: int, stop: int) -> float:
        part = LayerGraph.chain(model.layers[start:stop])
        return pipedream(part, [inner]).seconds

    weights = sum(layer.parameter_bytes for layer in model.layers)
    ways = [(server(0, 6) + 16 * weights / between) / 2]
    ways += [max(server(0, k), server(k, 6), 16 * model.layers[k - 1].output_bytes / between) for k in range(1, 6)]
    plan = pipedream(model, [inner, outer])
    assert plan.seconds == pytest.approx(min(ways), rel=1e-12)
    assert sum(stage.replicas for stage in plan.stages) == 4


def test_branches_cross_a_cut_once_for_each_output() -> None:
    model = read(folder_of("pipedream") / "resnet50.txt")
    names = [layer.name for layer in model.layers]
    add = next(i for i, name in enumerate(names) if "Add" in name)
    crossing = model.cut_bytes
    assert crossing[0] == crossing[-1] == 0
    assert crossing[add] > model.layers[add - 1].output_bytes, "the other branch crosses too"
    assert crossing[add + 1] == model.layers[add].output_bytes
