"""Clients that train on a device, while the server and all messages are in the memory of the processor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from laconic.federated.partition import dirichlet
from laconic.federated.population import Population
from laconic.federated.recorded import WORTH, Recorded
from laconic.federated.simulate import simulate
from laconic.federated.task import Classification
from tests.federated.digits import digits
from tests.federated.pretended import PretendedDevice

SENTENCES = [
    "fedavg(3, batch=20)",
    "fedprox(3, batch=20)",
    "fednova(3, batch=20, mu=0.1, momentum=0.5)",
    "scaffold(3, batch=20)",
    "scaffold(3, batch=20, option=I)",
    "fedopt(3, batch=20)",
    "fedbuff(2, batch=20, at_work=4)",
    "apf(6, batch=20, threshold=0.5)",
    "apf_sharp(6, batch=20)",
    "feddd(6, batch=20)",
    "astw_fedavg(3, batch=20)",
    "dp_fedavg(3, batch=20, seed=0)",
    "resfed(3, batch=20)",
    "fl_unlearning(3, batch=20)",
    "aafl(6, batch=20)",
    "adagq(3, batch=20) / qsgd",
    "adaptive_fl(6, batch=20)",
    "amble(3, batch=20)",
    "fast(3, batch=20)",
    "fedch(6, batch=20)",
    "fedlamp(3, batch=20)",
    "qsfl(3, batch=20)",
    'fedavg(3, batch=20) / stc(0.05)+ef / server(down="stc(0.05)")',
    "fedavg(3, batch=20) / topk(0.05)+ef",
]


def on(task: Classification, device: str) -> Classification:
    names = ("inputs", "labels", "test_inputs", "test_labels")
    return replace(task, **{name: getattr(task, name).to(device) for name in names})


def clients() -> Population:
    return Population(dirichlet(digits().labels[:300], 6, 0.5))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_task_on_a_device_is_learned_as_it_is_on_the_processor(sentence: str) -> None:
    here = simulate(digits(), clients(), sentence, 3, rate=0.2, evaluate_every=3)
    with PretendedDevice() as device:
        there = simulate(on(digits(), "cuda"), clients(), sentence, 3, rate=0.2, evaluate_every=3)
        assert not device.is_there(there.parameters)
    assert torch.equal(here.parameters, there.parameters) and here.steps == there.steps


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "sentence", ["fedavg(3, batch=20)", "scaffold(3, batch=20)", "apf(6, batch=20, threshold=0.5)"]
)
def test_recorded_gradients_are_those_that_are_computed(sentence: str) -> None:
    """Enough rounds that batches of twenty, and of some other sizes, are replayed."""
    draw = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(400, 16, generator=draw), torch.randint(0, 4, (400,), generator=draw)
    task = Classification(lambda: nn.Linear(16, 4), inputs, labels, inputs, labels)
    population = Population(dirichlet(labels[:300], 6, 0.5))
    here = simulate(task, population, sentence, 40, rate=0.1)
    for recorded in (False, True):
        there = simulate(on(task, "cuda"), population, sentence, 40, rate=0.1, recorded=recorded)
        assert not there.parameters.is_cuda
        torch.testing.assert_close(here.parameters, there.parameters, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_size_that_comes_often_is_computed_no_more() -> None:
    calls = []

    def compute(samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(len(samples))
        return samples * 2.0, samples.sum()

    recorded = Recorded(compute)
    for number in range(WORTH + 20):
        gradient, loss = recorded(torch.full((3,), float(number), device="cuda"))
        assert gradient.tolist() == [2.0 * number] * 3 and float(loss) == 3.0 * number
    assert len(calls) == WORTH + 1  # once more to be recorded


def test_a_recorded_task_on_the_processor_is_computed_as_it_is() -> None:
    plain, asked = (
        simulate(digits(), clients(), "fedavg(3, batch=20)", 2, rate=0.2, recorded=r) for r in (False, True)
    )
    assert torch.equal(plain.parameters, asked.parameters)
