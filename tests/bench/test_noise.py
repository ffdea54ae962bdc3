"""The noise scale of gradients: known covariances are found again, and watching a run changes nothing of it."""

from __future__ import annotations

import math

import pytest
import torch
from bench.rungs.noise import Noise, NoiseScale, noise_of
from torch import Tensor

from tests.bench.test_ladder import Line


def drawn(signal: Tensor, deviation: Tensor, samples: int, workers: int, draw: torch.Generator) -> list[list[Tensor]]:
    """Return each worker's mean over so many samples, in two tensors; samples differ by independent normal numbers."""
    means = [
        signal + deviation * torch.randn(len(signal), generator=draw, dtype=torch.float64) / samples**0.5
        for _ in range(workers)
    ]
    return [[mean[:10], mean[10:].view(2, -1)] for mean in means]


@pytest.mark.parametrize("workers", [2, 8, 32])
@pytest.mark.parametrize("samples", [1, 64, 4096])
def test_signal_and_trace_are_those_of_a_known_covariance(workers: int, samples: int) -> None:
    draw = torch.Generator().manual_seed(17 * workers + samples)
    signal = torch.randn(2010, generator=draw, dtype=torch.float64) / 10
    deviation = torch.rand(2010, generator=draw, dtype=torch.float64) * 3
    found = [noise_of(drawn(signal, deviation, samples, workers, draw), samples) for _ in range(200)]
    trace, square = float(deviation.square().sum()), float(signal.square().sum())
    assert sum(one.trace for one in found) / 200 == pytest.approx(trace, rel=0.02)
    spread = trace / samples / workers  # of |G|² by the noise that all workers together still have
    assert sum(one.signal for one in found) / 200 == pytest.approx(square, abs=0.02 * (square + spread))


def test_the_scale_does_not_depend_on_the_batch_at_which_it_is_measured() -> None:
    draw = torch.Generator().manual_seed(3)
    signal, deviation = torch.full((4010,), 0.1, dtype=torch.float64), torch.full((4010,), 2.0, dtype=torch.float64)
    for samples in (100, 400, 1600):
        scale = noise_of(drawn(signal, deviation, samples, 8, draw), samples).scale
        assert scale == pytest.approx(400, rel=0.1)


def test_gradients_without_anything_in_common_have_an_infinite_scale() -> None:
    assert noise_of([[torch.tensor([1.0])], [torch.tensor([-1.0])]], 4) == Noise(-1.0, 8.0)
    assert math.isinf(Noise(-1.0, 8.0).scale)


def test_a_model_is_watched_by_the_gradients_of_its_own_parameters() -> None:
    task = Line()
    watched, model = NoiseScale(task, 1, 3), task.build(2)
    watched.at(model, 5)

    def own(worker: int) -> list[Tensor]:
        model.zero_grad()
        task.loss(model, *task.batch(1, 5, worker)).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    assert watched.curve == [(5, pytest.approx(noise_of([own(w) for w in range(3)], task.samples).scale))]
    watched.curve += [(6, math.inf), (7, 1.0)]
    assert watched.fields["noise_scale"] == round(watched.curve[0][1], 1)
    assert [scale for _, scale in watched.fields["noise_curve"]][1:] == [None, 1.0]
