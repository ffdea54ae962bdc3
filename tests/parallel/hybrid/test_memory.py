"""Memory by stage, held against counts made by hand."""

from __future__ import annotations

import pytest

from laconic.parallel.hybrid.memory import by_stage, largest_bytes
from laconic.parallel.hybrid.published import sc21
from laconic.parallel.hybrid.runs import FULL, NONE, SELECTIVE, Layout, Run, Runs
from laconic.parallel.hybrid.transformer import Transformer

MODEL = Transformer(8, 1024, 16, 512, 1000)


def totals(**layout: object) -> list[tuple[float, ...]]:
    stages = by_stage(Run(MODEL, 32, Layout(**layout)))  # type: ignore[arg-type]
    return [
        tuple(float(getattr(s, n)[0]) for n in ("weights", "gradients", "optimizer", "activations")) for s in stages
    ]


def test_parameters_of_all_stages_are_the_model_and_a_second_embedding() -> None:
    alone, cut = totals(), totals(pipeline=4)
    norm = 2 * 1024  # the last normalization, which Megatron-LM's formula leaves out as well
    assert alone[0][0] / 2 == pytest.approx(MODEL.parameters, abs=norm)
    assert sum(stage[0] for stage in cut) / 2 == pytest.approx(MODEL.parameters + 1000 * 1024, abs=norm)
    assert alone[0][2] == pytest.approx(12 / 2 * alone[0][0])


def test_activations_follow_the_published_formula() -> None:
    values = 2 * 512 * 1024
    scores = 5 * 16 * 512 / 1024
    output = 6 * 2 * 512 * 1000
    none, selective, full = (totals(microbatch=2, recompute=how)[0][3] for how in (NONE, SELECTIVE, FULL))
    assert none == pytest.approx(8 * values * (34 + scores) + output)
    assert selective == pytest.approx(8 * values * 34 + values * scores + output)
    assert full == pytest.approx(8 * 2 * values + values * (32 + scores) + output)


def test_tensor_parallel_ranks_keep_inputs_whole() -> None:
    values = 512 * 1024
    found = totals(tensor=4, recompute=NONE)[0][3]
    assert found == pytest.approx(8 * values * (10 + 24 / 4 + 5 * 16 * 512 / 1024 / 4) + 6 * 512 * 1000 / 4)


def in_flight(pipeline: int, count: int, chunks: int, stage: int) -> int:
    """The most chunks whose activations a stage holds, by walking through its own list of passes."""
    if chunks == 1:
        warm = min(count, pipeline - stage - 1)
    else:
        warm = min(count * chunks, 2 * (pipeline - stage - 1) + (chunks - 1) * pipeline)
    held = most = 0
    passes = ["F"] * warm + ["F", "B"] * (count * chunks - warm) + ["B"] * warm
    for one in passes:
        held += 1 if one == "F" else -1
        most = max(most, held)
    assert held == 0
    return most


@pytest.mark.parametrize("pipeline", [2, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("microbatch", [1, 4, 16])
def test_early_stages_hold_more_microbatches(pipeline: int, chunks: int, microbatch: int) -> None:
    model = Transformer(16, 1024, 16, 512, 1000)
    count = 32 // microbatch
    stages = by_stage(Run(model, 32, Layout(pipeline, microbatch=microbatch, chunks=chunks, recompute=NONE)))
    layer = microbatch * 512 * 1024 * (34 + 5 * 16 * 512 / 1024)
    for k, stage in enumerate(stages[:-1]):
        held = in_flight(pipeline, count, chunks, k)
        assert float(stage.activations[0]) == pytest.approx(held * 16 / pipeline / chunks * layer)


def test_a_sharded_optimizer_is_divided_among_replicas() -> None:
    whole, divided = totals(data=8)[0], totals(data=8, sharded=True)[0]
    assert divided[2] == pytest.approx(whole[2] / 8) and divided[:2] == whole[:2]


def test_the_largest_stage_is_the_largest_of_all() -> None:
    for how in (NONE, FULL):
        for pipeline in (1, 2, 4):
            run = Run(MODEL, 32, Layout(pipeline, data=2, recompute=how))
            most = max(float(stage.total[0]) for stage in by_stage(run))
            assert float(largest_bytes(Runs.of([run]))[0]) == pytest.approx(most)


def test_the_published_runs_fit_into_the_gpus_that_ran_them() -> None:
    for row in sc21():
        assert float(largest_bytes(Runs.of([row.run]))[0]) < 80 * 2**30
