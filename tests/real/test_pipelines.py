"""Pipelines between real processes: parameters as on virtual workers, and on torch's own runtime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

import laconic
from laconic.errors import PipelineError
from laconic.language.grammar import parse_schedule
from laconic.parallel.pipeline.torch_runtime import actions, schedule
from tests.parallel.training import BATCH, WIDTH, alone, batches, layers, on_a_device, optimizer_of
from tests.real.pool import Pool, PoolRank


def real(member: PoolRank, word: str, microbatches: int) -> Any:
    return on_a_device(word, microbatches, process_group=member.process_group)


@pytest.mark.technique("gpipe", check=2)
@pytest.mark.technique("chimera", check=2)
@pytest.mark.parametrize(
    ("word", "microbatches", "workers"),
    [
        ("model_parallel_naive", 1, 4),
        ("gpipe", 6, 4),
        ("gpipe(recompute=true)", 6, 4),
        ("one_f_one_b", 8, 3),
        ("interleaved_1f1b", 4, 2),
        ("chimera", 4, 4),
        ("pipedream", 12, 4),
        ('pipedream(replicas="3-1")', 12, 4),
        ("ooo_backprop_pp(groups=2)", 6, 2),
        ("varuna", 6, 4),
        ("autopipe(sliced=2)", 6, 3),
    ],
)
def test_real_processes_train_as_virtual_workers(word: str, microbatches: int, workers: int, pool: Pool) -> None:
    found = pool.run(real, word, microbatches, workers=workers)
    virtual = laconic.simulate(lambda: on_a_device(word, microbatches), workers).results
    for (ours, losses, sent), (theirs, expected, bytes_of_virtual) in zip(found, virtual, strict=True):
        for stage, values in ours.items():
            for a, b in zip(values, theirs[stage], strict=True):
                torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        assert losses == pytest.approx(expected) if None not in losses else losses == expected
        assert sent == bytes_of_virtual


def on_torchs_runtime(member: PoolRank, word: str, microbatches: int) -> dict[int, list[Tensor]]:
    pipeline = parse_schedule(word).pipeline(member.size, microbatches)
    every = layers(pipeline.stages)
    modules = {stage: every[stage] for stage in pipeline.stages_of(member.rank)}
    optimizers = [optimizer_of(module) for module in modules.values()]
    example = torch.zeros(BATCH // microbatches, WIDTH)
    stages = [
        PipelineStage(module, stage, pipeline.stages, torch.device("cpu"), (example,), group=member.process_group)
        for stage, module in modules.items()
    ]
    made = schedule(pipeline, stages, nn.functional.mse_loss)
    for x, y in batches(3):
        inputs = (x,) if 0 in modules else ()
        made.step(*inputs, target=y if pipeline.stages - 1 in modules else None)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {stage: [p.detach().clone() for p in module.parameters()] for stage, module in modules.items()}


@pytest.mark.parametrize(
    ("word", "microbatches"), [("gpipe", 6), ("one_f_one_b", 4), ("interleaved_1f1b", 4), ("ooo_backprop_pp", 6)]
)
def test_torchs_runtime_carries_out_our_orders(word: str, microbatches: int, pool: Pool) -> None:
    found = {
        stage: values
        for own in pool.run(on_torchs_runtime, word, microbatches, workers=2)
        for stage, values in own.items()
    }
    expected, _ = alone(len(found), 3)
    for stage, values in found.items():
        for a, b in zip(values, expected[stage], strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def torchs_own(member: PoolRank, chunks: int, microbatches: int) -> dict[int, list[str]]:
    """Return the orders of torch's own schedule."""
    stages = [
        PipelineStage(
            layers(1)[0],
            member.rank + chunk * member.size,
            chunks * member.size,
            torch.device("cpu"),
            group=member.process_group,
        )
        for chunk in range(chunks)
    ]
    if chunks == 1:
        order = Schedule1F1B(stages[0], microbatches, nn.functional.mse_loss)._get_pipeline_order()
    else:
        order = ScheduleInterleaved1F1B(stages, microbatches, nn.functional.mse_loss).pipeline_order
    assert order is not None
    if chunks == 1:
        del order[member.size - 1]  # torch 2.13 lists forward passes of the last rank from one on, which is none
    return {
        rank: [str(action) for action in row if action is not None and action.is_compute_op]
        for rank, row in order.items()
    }


@pytest.mark.parametrize(
    ("word", "chunks"), [("one_f_one_b", 1), ("interleaved_1f1b(chunks=2)", 2), ("interleaved_1f1b(chunks=3)", 3)]
)
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 8)])
def test_schedules_that_torch_knows_are_its_own(
    word: str, chunks: int, workers: int, microbatches: int, pool: Pool
) -> None:
    theirs = pool.run(torchs_own, chunks, microbatches, workers=workers)[0]
    ours = actions(parse_schedule(word).pipeline(workers, microbatches))
    assert {rank: [str(action) for action in ours[rank]] for rank in theirs} == theirs and len(theirs) >= workers - 1


def test_what_torchs_runtime_cannot_do_is_said() -> None:
    for word in ("chimera", "pipedream"):
        with pytest.raises(PipelineError, match="unlike"):
            actions(parse_schedule(word).pipeline(4, 8))
    with pytest.raises(PipelineError, match="compute again"):
        actions(parse_schedule("varuna").pipeline(4, 8))
