"""Oobleck's templates, its pipelines for any number of nodes, its batches, and what it makes of failures."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.parallel.elastic.oobleck.batch import distribute_batch
from laconic.parallel.elastic.oobleck.plan import Oobleck, instantiate, plan, reconfigure, transfers
from laconic.parallel.elastic.oobleck.templates import Stage, Template, plan_template, template_sizes

LAYERS = tuple(float(x) for x in np.random.default_rng(0).uniform(1, 3, 10))


def planned(nodes: int, fewest: int, failures: int) -> Oobleck:
    return plan(LAYERS, nodes, fewest, failures, microbatches=40)


@pytest.mark.technique("oobleck", check=1)
@pytest.mark.parametrize(("failures", "fewest"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3)])
def test_any_failures_at_once_leave_a_plan_that_uses_all_nodes(failures: int, fewest: int) -> None:
    least = (failures + 1) * fewest
    for nodes in range(least, least + 4):
        oobleck = planned(nodes, fewest, failures)
        pipelines = instantiate(oobleck, range(nodes))
        assert len(pipelines) > failures and sorted(sum(pipelines, ())) == list(range(nodes))
        for lost in combinations(range(nodes), failures):
            after = reconfigure(oobleck, pipelines, lost)
            assert sorted(sum(after, ())) == [node for node in range(nodes) if node not in lost]
            assert all(len(pipeline) in oobleck.templates for pipeline in after)
            held = oobleck.holders(pipelines)
            for layer, source, node in transfers(oobleck, pipelines, after, lost):
                assert source not in lost and layer in held[source] and layer in oobleck.holders(after)[node]
            if nodes - failures >= least:
                assert len(after) > failures


@pytest.mark.technique("oobleck", check=2)
@pytest.mark.parametrize(
    ("sizes", "lost", "expected"),
    [
        ((2, 3, 4, 5), [2], ((0, 1), (3, 4), (5, 6, 7, 8), (9, 10, 11, 12, 13))),
        ((1, 2), [1], ((0,), (2,))),
        ((2, 2), [1], ((0,), (2, 3))),
        ((2, 2), [3], ((0, 1), (2,))),
        ((2, 2), [1, 2], ((0,), (3,))),
    ],
)
def test_published_reconfigurations(
    sizes: tuple[int, ...], lost: list[int], expected: tuple[tuple[int, ...], ...]
) -> None:
    """The first is the catalogue's; the others are in the tests of SymbioticLab/Oobleck."""
    templates = {size: plan_template(LAYERS, size) for size in range(2 if len(sizes) == 4 else 1, 6)}
    ends = np.cumsum(sizes).tolist()
    pipelines = tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))
    assert reconfigure(Oobleck(templates, 1, 40), pipelines, lost) == expected


def test_a_pipeline_that_is_too_small_borrows_or_is_merged() -> None:
    oobleck = planned(10, 3, 1)
    assert reconfigure(oobleck, ((0, 1, 2), (3, 4, 5, 6, 7)), [1]) == ((0, 2, 7), (3, 4, 5, 6))
    assert reconfigure(oobleck, ((0, 1, 2), (3, 4, 5)), [1]) == ((3, 4, 5, 0, 2),)
    assert reconfigure(oobleck, ((0, 1, 2), (3, 4, 5), (6, 7, 8)), [0, 1]) == ((3, 4, 5, 2), (6, 7, 8))
    with pytest.raises(LaconicError, match="2 nodes are left, and the model needs 3"):
        reconfigure(oobleck, ((0, 1, 2),), [1])


def test_a_layer_without_a_survivor_is_said() -> None:
    oobleck = planned(4, 2, 1)
    with pytest.raises(LaconicError, match="no surviving node holds layer"):
        transfers(oobleck, ((0, 1), (2, 3)), ((1, 3),), [0, 2])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_template_is_the_best_division(seed: int) -> None:
    """Against all divisions of few layers among nodes with one GPU each, and with two."""
    times = np.random.default_rng(seed).uniform(1, 4, 6).tolist()
    for nodes in (1, 2, 3):
        found = plan_template(times, nodes, 1, 8)
        cuts = combinations(range(1, 6), nodes - 1)
        sums = [[sum(times[a:b]) for a, b in zip((0, *cut), (*cut, 6), strict=True)] for cut in cuts]
        assert found.seconds(8) == pytest.approx(min(sum(stages) + 7 * max(stages) for stages in sums))
    two = plan_template(times, 2, 2, 8)
    assert all(stage.gpus in (1, 2) for stage in two.stages)
    assert {stage.node: sum(s.gpus for s in two.stages if s.node == stage.node) for stage in two.stages} == {0: 2, 1: 2}
    options = []
    for cut in range(1, 6):
        sides = []
        for a, b in ((0, cut), (cut, 6)):
            alone = [[sum(times[a:b]) / 2]]
            sides.append(alone + [[sum(times[a:m]), sum(times[m:b])] for m in range(a + 1, b)])
        options += [sum(first + second) + 7 * max(first + second) for first, second in product(*sides)]
    assert two.seconds(8) == pytest.approx(min(options))


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.0, 2.0, 4.0), (3.0, 1.0, 1.7), (1.0, 30.0)])
def test_the_batch_is_divided_evenly_in_time(seconds: tuple[float, ...]) -> None:
    for total in (len(seconds), 7, 12):
        found = distribute_batch(seconds, total)
        ways = [w for w in product(range(1, total + 1), repeat=len(seconds)) if sum(w) == total]
        assert sum(found) == total and min(found) >= 1
        assert np.var(np.multiply(found, seconds)) == pytest.approx(min(np.var(np.multiply(w, seconds)) for w in ways))
    with pytest.raises(LaconicError, match="cannot keep"):
        distribute_batch(seconds, 1)


def test_the_fastest_multiset_is_taken() -> None:
    oobleck = planned(9, 2, 1)
    found = instantiate(oobleck, range(9))
    sizes = [(2, 2, 2, 3), (3, 3, 3)]
    assert oobleck.seconds([len(p) for p in found]) == pytest.approx(min(oobleck.seconds(way) for way in sizes))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(LaconicError, match="3 nodes cannot hold 2 pipelines"):
        template_sizes(3, 2, 1)
    with pytest.raises(LaconicError, match="each once and in order"):
        Template(1, (Stage((0, 2), 0, 1, 1.0), Stage((3, 4), 0, 1, 1.0)))
    with pytest.raises(LaconicError, match="each of its nodes"):
        Template(2, (Stage((0, 2), 0, 1, 1.0),))
