"""Hydro: fused trials train as they would alone, rates transfer between widths, and bubbles are filled."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laconic.cluster.hpo.bubbles import GPipe, fill
from laconic.cluster.hpo.fused import Fused, most_fused
from laconic.cluster.hpo.hydro import search
from laconic.cluster.hpo.maximal_update import scale, scaling
from laconic.cluster.hpo.places import Place, allocate
from laconic.errors import ClusterError


def cross_entropy(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))


def convolutions(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, 7, 3),
        nn.Flatten(), nn.Linear(42, 5),
    )  # fmt: skip


@functools.cache
def batches(seed: int, count: int, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    """A teacher's labels."""
    draws = torch.Generator().manual_seed(seed)
    teacher = torch.randn(20, 16, generator=draws), torch.randn(16, 5, generator=draws)
    found = []
    for _ in range(count):
        x = torch.randn(size, 20, generator=draws)
        found.append((x, (torch.tanh(x @ teacher[0]) @ teacher[1]).argmax(dim=1)))
    return found


@pytest.mark.technique("hydro", check=1)
@pytest.mark.parametrize("build", [perceptron, convolutions])
@pytest.mark.parametrize("seed", [0, 1])
def test_fused_trials_train_as_they_would_alone(build: Callable[[int], nn.Module], seed: int) -> None:
    torch.manual_seed(seed)
    models = [build(9).double() for _ in range(5)]
    rates, momenta, decays = (0.3, 0.1, 0.03, 0.01, 0.2), (0.0, 0.9, 0.5, 0.0, 0.9), (0.0, 0.0, 0.1, 0.01, 0.0)
    data = [(x.double(), y) for x, y in batches(seed, 12, size=7)]
    fused = Fused(models, rates, momenta, decays)
    together = torch.stack([fused.step(cross_entropy, *batch) for batch in data])
    for i, (rate, momentum, decay) in enumerate(zip(rates, momenta, decays, strict=True)):
        model = copy.deepcopy(models[i])
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
        for step, batch in enumerate(data):
            loss = cross_entropy(model, *batch)
            assert float(together[step, i]) == pytest.approx(loss.item(), rel=1e-9)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for name, p in fused.state_dict(i).items():
            torch.testing.assert_close(p, dict(model.named_parameters())[name].detach(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(fused.losses(cross_entropy, *data[0])[i], cross_entropy(model, *data[0]).detach())


def test_models_that_differ_are_not_fused() -> None:
    with pytest.raises(ClusterError, match="one architecture"):
        Fused([perceptron(4), perceptron(8)], [0.1, 0.1])
    with pytest.raises(ClusterError, match="for each"):
        Fused([perceptron(4)], [0.1, 0.2])


def test_as_many_are_fused_as_fit_and_pay() -> None:
    speeds = {1: 10.0, 2: 19.0, 4: 33.0, 8: 40.0, 16: 41.0, 32: 80.0}
    assert most_fused(2e9, 2.5e9, 40e9, speeds.__getitem__) == 8  # 16 are hardly faster
    assert most_fused(2e9, 2.5e9, 4e9, speeds.__getitem__) == 4  # 5 fit
    assert most_fused(2e9, 2.5e9, 2.4e9, speeds.__getitem__) == 1
    with pytest.raises(ClusterError, match="has to fit"):
        most_fused(2e9, 2.5e9, 1e9, speeds.__getitem__)


RATES = [2.0**i for i in range(-12, 4)]


def losses_of_target(seed: int, width: int, base: int) -> list[float]:
    """The last losses of a wide model at each rate, scaled from a narrow one."""
    torch.manual_seed(100 + seed)
    model = perceptron(width)
    trials = Fused([model] * len(RATES), RATES, multipliers=scale(model, perceptron(base)))
    curves = torch.stack([trials.step(cross_entropy, *batch) for batch in batches(seed, 150)])
    last: list[float] = torch.nan_to_num(curves, nan=float("inf"))[-15:].mean(dim=0).tolist()
    return last


@pytest.mark.long
@pytest.mark.technique("hydro", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_on_a_narrow_surrogate_finds_the_targets_rate(seed: int) -> None:
    found = search(perceptron, 128, RATES, cross_entropy, batches(seed, 150), seed=seed)
    target = losses_of_target(seed, 128, 16)
    assert abs(found.best - int(np.argmin(target))) <= 1
    weights = sum(p.numel() for p in perceptron(128).parameters())
    assert len(RATES) * 150 * weights / found.weights >= 5
    assert found.eager is not None and found.eager[0] < 120  # the target starts before the search ends
    assert abs(found.eager[1] - found.best) <= 2


@pytest.mark.technique("hydro", check=2)
def test_a_step_changes_every_layer_as_much_at_every_width() -> None:
    """Outputs of all layers after two steps: they grow with the width unless the model is scaled."""
    data = [(x.double(), y) for x, y in batches(3, 2, size=64)]

    def changes(width: int, scaled: bool) -> list[float]:
        torch.manual_seed(width)
        model = perceptron(width).double()
        multipliers = scale(model, perceptron(32)) if scaled else None
        trial = Fused([model], [0.5], multipliers=multipliers)
        for batch in data:
            trial.step(cross_entropy, *batch)
        after = copy.deepcopy(model)
        after.load_state_dict(trial.state_dict(0))
        x, seen, found = data[0][0], data[0][0], []
        assert isinstance(model, nn.Sequential) and isinstance(after, nn.Sequential)
        with torch.no_grad():
            for before, now in zip(model, after, strict=True):
                x, seen = before(x), now(seen)
                found.append(float((seen - x).pow(2).mean().sqrt()))
        return [found[0], found[2], found[4]]

    narrow, wide, plain = changes(32, True), changes(1024, True), changes(1024, False)
    assert changes(32, False) == narrow  # the narrow model is its own base
    for small, large in zip(narrow, wide, strict=True):
        assert 0.7 < large / small < 1.4
    assert plain[2] / narrow[2] > 4 and plain[0] / narrow[0] < 0.4
    np.testing.assert_allclose(scaling((64, 20), (8, 20)), (1, 8))
    np.testing.assert_allclose(scaling((64, 64), (8, 8)), (1, 1))
    np.testing.assert_allclose(scaling((5, 64), (5, 8)), (8**-0.5, 1 / 8))
    np.testing.assert_allclose((*scaling((64,), (8,)), *scaling((5,), (5,))), (1, 8, 1, 1))


@pytest.mark.technique("hydro", check=2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pipeline", [GPipe(4, 8, 0.010, 0.020), GPipe(8, 8, 0.015, 0.025), GPipe(3, 5, 0.02, 0.05)])
def test_bubbles_are_filled_and_the_step_is_hardly_longer(pipeline: GPipe, seed: int) -> None:
    stages, micro, each = pipeline.stages, pipeline.microbatches, pipeline.forward + pipeline.backward
    alone = (stages + micro - 1) * each
    draws = np.random.default_rng(seed)
    filled = fill(pipeline, 0.004, actual=lambda: 0.004 * float(draws.lognormal(0, 0.15)))
    assert filled.bubbles == pytest.approx(stages * (stages - 1) * each)
    assert alone <= filled.seconds < 1.05 * alone
    assert filled.used > 0.6 * filled.bubbles
    reckless = fill(pipeline, 0.004, margin=0.01, actual=lambda: 0.053)
    assert reckless.seconds > 1.05 * alone
    assert fill(pipeline, 0.004, 2e9, 1e9).iterations == 0
    assert fill(pipeline, 10.0).seconds == pytest.approx(alone)


def test_large_groups_choose_their_place_first() -> None:
    places = [Place(4e9, 0.3), Place(40e9, 1.0), Place(11e9, 0.5)]
    assert allocate([2e9, 30e9, 9e9], places) == [0, 1, 2]
    assert allocate([2e9, 3e9, 3.5e9, 1e9], places) == [0, 2, 1, None]
