"""Copies of a pipeline, whose stages' gradients are exchanged as a sentence says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import PipelineError
from laconic.language.grammar import parse_schedule
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.parallel.training import BATCH, alone, batches, layers, optimizer_of

COPIES, STAGES = 2, 2


def copied(
    word: str, strategy: str | None, steps: int = 4, copies: int = COPIES, own_start: bool = False, **options: Any
) -> tuple[dict[int, list[Tensor]], float]:
    """Train a copy of the pipeline on this worker's share of each batch; return its stages and the bytes it sent to
    other copies."""
    worker: Any = connect()
    mesh: Any = laconic.init_device_mesh("cpu", (STAGES, copies), mesh_dim_names=("pp", "dp"))
    along, copy = worker.adopt(mesh["pp"].get_group()), mesh["dp"].get_group().rank()
    pipeline = parse_schedule(word).pipeline(STAGES, 4)
    every = layers(pipeline.stages)
    if own_start and copy:
        every = [nn.Sequential(nn.Linear(6, 6), *list(stage.children())[1:]) for stage in every]
    modules = {stage: every[stage] for stage in pipeline.stages_of(along.rank)}
    optimizers = {stage: optimizer_of(module) for stage, module in modules.items()}
    if strategy is not None:
        for stage, module in modules.items():
            _, optimizers[stage] = laconic.distribute(module, optimizers[stage], strategy, mesh["dp"])
    device = PipelineDevice(pipeline, modules, optimizers, nn.functional.mse_loss, worker, along, **options)
    before = worker.ledger.by_operation(Kind.PAYLOAD)
    share = BATCH // copies
    for x, y in batches(steps):
        device.step(x[share * copy : share * (copy + 1)], y[share * copy : share * (copy + 1)])
    for stage, module in modules.items() if strategy is not None else ():
        laconic.finish(module, optimizers[stage])
    after = worker.ledger.by_operation(Kind.PAYLOAD)
    sent = sum(n - before.get(name, 0.0) for name, n in after.items() if name != "send")
    return {s: [p.detach().clone() for p in module.parameters()] for s, module in modules.items()}, sent


def train(*how: Any, **options: Any) -> list[tuple[dict[int, list[Tensor]], float]]:
    return laconic.simulate(lambda: copied(*how, **options), COPIES * STAGES).results


@pytest.mark.parametrize(
    "word", ["gpipe", "one_f_one_b", "interleaved_1f1b", "chimera", "zero_bubble", "gpipe(recompute=true)"]
)
def test_copies_train_as_one_process(word: str) -> None:
    stages = parse_schedule(word).pipeline(STAGES, 4).stages
    expected, _ = alone(stages, 4)
    for own_start in (False, True):  # all start from the first copy
        for found, _ in train(word, "bsp", own_start=own_start):
            for stage, parameters in found.items():
                for ours, theirs in zip(parameters, expected[stage], strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("strategy", ["int8", "topk(0.2)+ef", "local(2) / int8+ef", "diloco(2)"])
def test_copies_stay_equal_and_say_less(strategy: str) -> None:
    results = train("one_f_one_b", strategy)
    exact = train("one_f_one_b", "bsp")
    for stage in range(STAGES):
        first, second = results[COPIES * stage], results[COPIES * stage + 1]
        assert all(map(torch.equal, first[0][stage], second[0][stage]))
        assert not all(map(torch.equal, first[0][stage], exact[COPIES * stage][0][stage]))
        assert 0 < first[1] < exact[COPIES * stage][1]


def test_gradients_are_exchanged_once_for_all_microbatches() -> None:
    elements = sum(p.numel() for p in layers(1)[0].parameters())
    for _, sent in train("one_f_one_b", "bsp", steps=3):
        assert sent == pytest.approx(3 * 4 * elements)  # two copies: a ring sends each element once


def test_an_update_takes_as_long_as_the_pipeline_says() -> None:
    costs = StageCosts.of([1.0, 1.0], [2.0, 2.0], update=[5.0, 7.0])

    def seconds(strategy: str | None) -> float:
        """Without a network, messages take no time."""
        compute = Compute(1.0, 1.0, 1.0)
        return laconic.simulate(
            lambda: copied("one_f_one_b", strategy, costs=costs), COPIES * STAGES, compute=compute
        ).seconds

    assert seconds("bsp") == pytest.approx(seconds(None)) and seconds(None) > 4 * 12


@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        ("bsp / none / allreduce / dear", "write wfbp"),
        ("bsp / none / allreduce / mgwfbp", "write wfbp"),
        ("accumulate(2)", "one for each microbatch"),
    ],
)
def test_what_needs_passes_of_a_whole_batch_is_refused(strategy: str, part: str) -> None:
    def refused() -> str:
        with pytest.raises(PipelineError) as caught:
            copied("one_f_one_b", strategy)
        return str(caught.value)

    assert all(part in message for message in laconic.simulate(refused, COPIES * STAGES).results)


def test_a_stage_is_given_with_its_own_optimizer() -> None:
    def refused() -> str:
        worker = connect()
        pipeline = parse_schedule("gpipe").pipeline(1, 1)
        first, second = layers(2)
        _, optimizer = laconic.distribute(first, optimizer_of(first))
        with pytest.raises(PipelineError) as caught:
            PipelineDevice(
                pipeline, {0: second}, {0: optimizer}, nn.functional.mse_loss, worker, worker.group([worker.rank])
            )
        return str(caught.value)

    assert "another module" in laconic.simulate(refused, 1).results[0]
