"""Pipelines carried out: the gradients of one process, whatever the schedule, on virtual workers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import PipelineError
from laconic.language.grammar import parse_schedule
from laconic.network.network_tree import Network
from laconic.parallel.pipeline.costs import StageCosts
from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.parallel.pipeline.timeline import timeline
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.parallel.training import BATCH, WIDTH, alone, batches, layers, on_a_device, optimizer_of

Results = list[tuple[dict[int, list[Tensor]], list[float | None], float]]


def train(word: str, devices: int, microbatches: int, **options: object) -> Results:
    return laconic.simulate(lambda: on_a_device(word, microbatches, **options), devices).results  # type: ignore[arg-type]


def parameters(results: Results) -> list[list[Tensor]]:
    """Return each stage's parameters, which are equal wherever it lies on several devices."""
    found: dict[int, list[Tensor]] = {}
    for stages, _, _ in results:
        for stage, values in stages.items():
            known = found.setdefault(stage, values)
            assert all(map(torch.equal, known, values))
    return [found[stage] for stage in sorted(found)]


def assert_close(found: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.technique("gpipe", check=2)
@pytest.mark.technique("chimera", check=2)
@pytest.mark.technique("ooo_backprop_pp", check=2)
@pytest.mark.technique("autopipe", check=3)
@pytest.mark.parametrize(
    ("word", "microbatches"),
    [
        ("model_parallel_naive", 1),
        ("gpipe", 6),
        ("gpipe(recompute=true)", 3),
        ("one_f_one_b", 8),
        ("one_f_one_b(recompute=true)", 6),
        ("interleaved_1f1b", 4),
        ("chimera", 4),
        ("chimera", 12),
        ("chimera", 3),
        ("ooo_backprop_pp", 6),
        ("ooo_backprop_pp(groups=2)", 3),
        ("varuna", 6),
        ("zero_bubble", 8),
        ("autopipe(sliced=2)", 6),
    ],
)
@pytest.mark.parametrize("devices", [2, 4])
def test_synchronous_schedules_train_as_one_process(word: str, microbatches: int, devices: int) -> None:
    results = train(word, devices, microbatches)
    found = parameters(results)
    expected, losses = alone(len(found), 3)
    assert_close(found, expected)
    for step, loss in enumerate(losses):
        assert sum(own[step] or 0.0 for _, own, _ in results) == pytest.approx(loss, abs=1e-6)


@pytest.mark.technique("model_parallel_naive", check=1)
@pytest.mark.parametrize("devices", [2, 4])
def test_one_batch_at_a_time_is_one_device_exactly(devices: int) -> None:
    found = parameters(train("model_parallel_naive", devices, 1))
    expected, _ = alone(devices, 3)
    assert all(
        torch.equal(a, b)
        for ours, theirs in zip(found, expected, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.technique("one_f_one_b", check=2)
@pytest.mark.parametrize("word", ["one_f_one_b", "varuna", "interleaved_1f1b(chunks=1)"])
def test_sums_in_the_order_of_microbatches_have_the_same_bits(word: str) -> None:
    gpipe = parameters(train("gpipe", 4, 8, in_order=True))
    other = parameters(train(word, 4, 8, in_order=True))
    assert all(torch.equal(a, b) for x, y in zip(gpipe, other, strict=True) for a, b in zip(x, y, strict=True))
    unordered = parameters(train("gpipe", 4, 8))
    assert any(not torch.equal(a, b) for x, y in zip(gpipe, unordered, strict=True) for a, b in zip(x, y, strict=True))


def test_recomputation_draws_the_same_random_numbers() -> None:
    kept = parameters(train("gpipe", 3, 4, dropout=0.5))
    again = parameters(train("gpipe(recompute=true)", 3, 4, dropout=0.5))
    assert all(torch.equal(a, b) for x, y in zip(kept, again, strict=True) for a, b in zip(x, y, strict=True))


def replayed(devices: int, steps: int, microbatches: int) -> list[list[Tensor]]:
    """Train as PipeDream, one mini-batch after the other in one process, with every stage's weights as old as there.

    Every call of the executor fills and empties the pipeline, so that versions are counted anew.
    """
    stages = layers(devices)
    optimizers = [optimizer_of(stage) for stage in stages]
    for x, y in batches(steps):
        history = [[{n: p.detach().clone() for n, p in stage.named_parameters()}] for stage in stages]
        for k, (a, b) in enumerate(zip(x.chunk(microbatches), y.chunk(microbatches), strict=True)):
            weights = [
                {n: p.clone().requires_grad_() for n, p in history[s][max(0, k - (devices - 1 - s))].items()}
                for s in range(devices)
            ]
            h = a
            for stage, old in zip(stages, weights, strict=True):
                h = torch.func.functional_call(stage, old, (h,))
            nn.functional.mse_loss(h, b).backward()
            for s, stage in enumerate(stages):
                for n, p in stage.named_parameters():
                    p.grad = weights[s][n].grad
                optimizers[s].step()
                history[s].append({n: p.detach().clone() for n, p in stage.named_parameters()})
    return [[p.detach() for p in stage.parameters()] for stage in stages]


@pytest.mark.technique("pipedream", check=3)
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_pipedream_is_a_replay_with_the_same_versions(devices: int) -> None:
    assert_close(parameters(train("pipedream", devices, 12)), replayed(devices, 3, 12))


@pytest.mark.technique("pipedream", check=2)
@pytest.mark.parametrize("devices", [2, 3])
def test_one_replicated_stage_is_data_parallelism(devices: int) -> None:
    """Each update is the mean gradient of as many mini-batches as there are replicas."""
    found = parameters(train(f'pipedream(replicas="{devices}")', devices, 12))
    model = layers(1)[0]
    optimizer = optimizer_of(model)
    for x, y in batches(3):
        for a, b in zip(x.chunk(12 // devices), y.chunk(12 // devices), strict=True):
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_close(found, [[p.detach() for p in model.parameters()]])


@pytest.mark.technique("interleaved_1f1b", check=3)
def test_bytes_between_stages() -> None:
    """Per step, one activation and one gradient of every border; shapes are sent once, and count as control."""
    border = BATCH * WIDTH * 4
    sent = {
        word: train(word, 4, 4, steps=2) for word in ("one_f_one_b", "interleaved_1f1b", "interleaved_1f1b(chunks=3)")
    }
    totals = {word: sum(own[2] for own in results) for word, results in sent.items()}
    shapes = 80 * 4  # bytes of the shapes of four microbatches at a border
    assert totals["one_f_one_b"] == 2 * 2 * 3 * border + 3 * shapes
    assert totals["interleaved_1f1b"] == 2 * 2 * 7 * border + 7 * shapes
    assert totals["interleaved_1f1b(chunks=3)"] == 2 * 2 * 11 * border + 11 * shapes


@pytest.mark.parametrize("word", ["gpipe", "one_f_one_b", "interleaved_1f1b", "ooo_backprop_pp", "varuna"])
@pytest.mark.parametrize("rate", ["1Mbit", "100kbit"])
def test_the_virtual_clock_agrees_with_the_price(word: str, rate: str) -> None:
    devices, microbatches = 4, 8
    pipeline = parse_schedule(word).pipeline(devices, microbatches)
    activation = BATCH / microbatches * WIDTH * 4
    costs = StageCosts(
        tuple(0.01 * (1 + s % 3) for s in range(pipeline.stages)),
        tuple(0.02 * (1 + s % 2) for s in range(pipeline.stages)),
        activation_bytes=(activation,) * (pipeline.stages - 1),
    )
    network = Network.flat(devices, {"1Mbit": 1e6, "100kbit": 1e5}[rate], latency_seconds=1e-3)
    priced = timeline(pipeline, costs, network).seconds

    def run(steps: int) -> float:
        compute = Compute(1.0, 1.0, 1.0)
        work = lambda: on_a_device(word, microbatches, steps, costs=costs)  # noqa: E731
        return laconic.simulate(work, devices, network=network, compute=compute).seconds

    assert run(4) - run(3) == pytest.approx(priced, rel=0.03)


def device_with(**changes: object) -> None:
    worker = connect()
    pipeline = parse_schedule("gpipe").pipeline(2, 4)
    modules = {worker.rank: layers(2)[worker.rank]}
    optimizers = {stage: optimizer_of(module) for stage, module in modules.items()}
    given = {"modules": modules, "optimizers": optimizers, **changes}
    device = PipelineDevice(pipeline, loss=nn.functional.mse_loss, worker=worker, **given)  # type: ignore[arg-type]
    x, y = batches(1)[0]
    device.step(x, y)
    device.step(x[:12], y[:12])


def test_mistakes_are_told() -> None:
    with pytest.raises(PipelineError, match="holds stages"):
        laconic.simulate(lambda: device_with(modules={}), 2)
    with pytest.raises(PipelineError, match="keep their shapes"):
        laconic.simulate(device_with, 2)
    with pytest.raises(PipelineError, match="is for 2 devices"):
        laconic.simulate(device_with, 3)
    with pytest.raises(PipelineError, match="cannot be cut"):
        train("gpipe", 2, 7)
