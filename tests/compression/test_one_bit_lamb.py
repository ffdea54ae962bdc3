"""1-bit LAMB: LAMB where all steps are its own; momenta give gradients back; layers' rates follow, within bounds."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import ContractError
from laconic.optim import LAMB
from tests.compression.test_momentum import STAGES as ONE_BIT_ADAM
from tests.compression.test_momentum import adam
from tests.compression.test_momentum import train as on_digits
from tests.compression.test_zero_one_adam import saving
from tests.sync import rounds, text
from tests.sync.rounds import Run, flat

STAGES = ONE_BIT_ADAM.replace("frozen_adam", "frozen_lamb")
RATE, DECAY, LEAST, MOST = 0.02, 0.01, 0.01, 10.0


def lamb(parameters: Any, decay: float = DECAY) -> LAMB:
    return LAMB(parameters, RATE, weight_decay=decay, bias_correction=False, ratio_bounds=(LEAST, MOST))


def without_decay(parameters: Any) -> LAMB:
    return lamb(parameters, 0.0)


def by_hand(steps: int) -> tuple[Tensor, list[float]]:
    """LAMB as the row writes it, on the mean of all workers' gradients; parameters, and the mean ratios of layers."""
    model = rounds.net()
    means, squares = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    ratios = [0.0 for _ in means]
    for step in range(steps):
        model.zero_grad()
        torch.stack([rounds.loss(model, rank, step) for rank in range(rounds.WORKERS)]).mean().backward()
        with torch.no_grad():
            for i, (p, m, v) in enumerate(zip(model.parameters(), means, squares, strict=True)):
                assert p.grad is not None
                m.mul_(0.9).add_(0.1 * p.grad)
                v.mul_(0.999).add_(0.001 * p.grad * p.grad)
                update = m / (v.sqrt() + 1e-6) + DECAY * p
                c = min(max(float(p.norm() / update.norm()), LEAST), MOST)
                ratios[i] = 0.9 * ratios[i] + 0.1 * c
                p.sub_(RATE * c * update)
    return flat(model.parameters()), ratios


@pytest.mark.long
@pytest.mark.technique("one_bit_lamb", check=1)
def test_a_first_stage_of_all_steps_is_lamb_without_bias_correction() -> None:
    expected, ratios = by_hand(15)
    for run in rounds.simulated(STAGES.format(15), 15, lamb):
        torch.testing.assert_close(run.path[-1], expected, rtol=0, atol=1e-9)
        kept = [float(run.optimizer.state[p]["ratio"]) for p in run.model.parameters()]
        assert kept == pytest.approx(ratios, rel=1e-6)


class Layers(nn.Module):
    """Three layers with gradients to choose; the second is in a group without ratios, the third never has any."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.tensor(x, dtype=torch.float64) for x in ([1.0, -2.0], [0.5], [3.0]))

    def forward(self, rank: int, step: int) -> Tensor:
        first, second, third = self.layers
        return (first * gradient(rank, step, 2)).sum() + 3 * (second * gradient(rank, step, 1)).sum() + 0 * third.sum()


def gradient(rank: int, step: int, size: int) -> Tensor:
    """Large in the first stage and small afterwards, so that fresh variances fall."""
    return torch.arange(1, size + 1, dtype=torch.float64) * (1 + 0.5 * rank) * (1.0 if step < 3 else 0.1)


def train_layers(second_stage: str, steps: int = 6) -> Tensor:
    model: Any = Layers()
    groups = [{"params": [x], "adapt": i != 1} for i, x in enumerate(model.layers)]
    bounds = (LEAST, MOST)
    optimizer: Any = LAMB(groups, RATE, (0.9, 0.9), weight_decay=DECAY, bias_correction=False, ratio_bounds=bounds)
    model, optimizer = laconic.distribute(model, optimizer, f"bsp until step 3, then {second_stage}")
    for step in range(steps):
        model(laconic.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model.parameters())


def test_a_layer_without_gradients_changes_nothing_for_others() -> None:
    """Layers are sent scaled to one size in one buffer, of which one scale is taken: none may be infinite."""
    one, other = laconic.simulate(lambda: train_layers("frozen_lamb / flat+scaled_sign"), 2).results
    assert torch.equal(one, other) and one.isfinite().all()
    assert not torch.equal(one, laconic.simulate(lambda: train_layers("frozen_lamb", 3), 2).results[0])


def test_the_second_stage_is_what_one_writes_by_hand() -> None:
    """Two workers without compression, three steps of LAMB and three with frozen variances."""
    layers = [x.detach().clone() for x in Layers().layers]
    m, v = ([torch.zeros_like(x) for x in layers] for _ in range(2))
    ratios, factors, fresh = [0.0] * 3, [1.0] * 3, [torch.empty(0)] * 3
    for step in range(6):
        mean = [1.25 * gradient(0, step, 2), 3 * 1.25 * gradient(0, step, 1), torch.zeros(1, dtype=torch.float64)]
        for i, (x, g) in enumerate(zip(layers, mean, strict=True)):
            m[i] = 0.9 * m[i] + 0.1 * g
            if step < 3:
                v[i] = 0.9 * v[i] + 0.1 * g * g
            along = m[i] / (v[i].sqrt() + 1e-6)
            update = along + DECAY * x
            if step < 3:
                rate = min(max(float(x.norm() / update.norm()), LEAST), MOST)
                ratios[i], fresh[i] = 0.9 * ratios[i] + 0.1 * rate, v[i].clone()
            else:
                fresh[i] = 0.9 * fresh[i] + 0.1 * g * g
                share = min(1.0, float(along.norm() / update.norm()))
                f = float(((v[i].sqrt() + 1e-6) / (fresh[i].sqrt() + 1e-6)).max()) * share + 1 - share
                factors[i] = min(max(f, 0.9 * factors[i]), 1.1 * factors[i])
                rate = ratios[i] * factors[i]
            x.sub_(RATE * (1.0 if i == 1 else rate) * update)
    assert factors[0] > 1.1, "it has risen with the fall of the variances, by no more than a tenth at a time"
    for found in laconic.simulate(lambda: train_layers("frozen_lamb"), 2).results:
        torch.testing.assert_close(found, flat(layers), rtol=1e-6, atol=1e-8)


@pytest.mark.long
@pytest.mark.technique("one_bit_lamb", check=1)
def test_momenta_agree_and_variances_stand_still() -> None:
    seen: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def look(run: Run, step: int) -> None:
        seen[laconic.rank(), step] = run.memory("exp_avg"), run.memory("exp_avg_sq")

    runs = laconic.simulate(lambda: rounds.train(STAGES.format(6), 14, lamb, after=look), 3).results
    for step in range(7, 15):
        for rank in range(3):
            momentum, variance = seen[rank, step]
            assert torch.equal(momentum, seen[0, step][0]) and torch.equal(variance, seen[0, 6][1])
            assert torch.equal(runs[rank].path[step - 1], runs[0].path[step - 1])
        assert not torch.equal(seen[0, step][0], seen[0, step - 1][0])


@pytest.mark.long
@pytest.mark.technique("one_bit_lamb", check=2)
@pytest.mark.parametrize("make", [lamb, without_decay])
@pytest.mark.parametrize("bounds", [(0.5, 4.0), (0.9, 1.2)])
def test_factors_stay_within_bounds_and_near_their_last_values(make: Any, bounds: tuple[float, float]) -> None:
    factors: list[Tensor] = [torch.ones(3)]

    def look(run: Run, step: int) -> None:
        if laconic.rank() == 0 and step > 5:
            factors.append(run.optimizer.session.partitions[0].tiers[0].sync_state["factors"].clone())

    words = f"frozen_lamb(lowest={bounds[0]}, highest={bounds[1]})"
    sentence = STAGES.format(5).replace("frozen_lamb", words)
    laconic.simulate(lambda: rounds.train(sentence, 60, make, after=look), 4)
    moved = torch.stack(factors)
    assert moved.min() >= bounds[0] and moved.max() <= bounds[1]
    quotients = moved[1:] / moved[:-1]
    assert quotients.min() >= 0.9 - 1e-6 and quotients.max() <= 1.1 + 1e-6
    assert (moved[-1] - moved[0]).abs().max() > 0.05, "and they move"


@pytest.mark.long
@pytest.mark.technique("one_bit_lamb", check=2)
def test_exact_momenta_give_the_mean_gradient_back() -> None:
    """From the fresh variances: each step adds the square of the gradient that momenta gave back."""
    gradients: dict[tuple[int, int], Tensor] = {}
    momenta: dict[int, Tensor] = {}
    fresh: dict[int, Tensor] = {}

    def look(run: Run, step: int) -> None:
        if laconic.rank() == 0 and step > 5:
            momenta[step], fresh[step] = run.memory("exp_avg"), run.remembered("fresh")

    def body() -> None:
        model = rounds.net()
        model, optimizer = laconic.distribute(model, lamb(model.parameters()), "bsp until step 5, then frozen_lamb")
        run = Run(model, optimizer, [], [])
        for step in range(1, 20):
            rounds.loss(model, laconic.rank(), step).backward()
            gradients[laconic.rank(), step] = flat(p.grad for p in model.parameters() if p.grad is not None)
            optimizer.step()
            optimizer.zero_grad()
            look(run, step)

    laconic.simulate(body, 4)
    for step in range(7, 20):
        true = torch.stack([gradients[rank, step] for rank in range(4)]).mean(0)
        rebuilt = (momenta[step] - 0.9 * momenta[step - 1]) / (1 - 0.9)
        torch.testing.assert_close(rebuilt, true, rtol=1e-4, atol=1e-4)
        added = (fresh[step] - 0.999 * fresh[step - 1]) / (1 - 0.999)
        torch.testing.assert_close(added, true.square(), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_step_is_the_rows() -> None:
    """One step of the second stage with exact means, written out."""
    runs = rounds.simulated("bsp until step 8, then frozen_lamb", 8, lamb)
    (then, *_) = rounds.simulated("bsp until step 8, then frozen_lamb", 9, lamb)
    model = rounds.net()
    torch.nn.utils.vector_to_parameters(runs[0].path[-1], model.parameters())
    torch.stack([rounds.loss(model, rank, 8) for rank in range(4)]).mean().backward()
    moved = []
    for p, old in zip(model.parameters(), runs[0].model.parameters(), strict=True):
        state, g = runs[0].optimizer.state[old], p.grad
        assert g is not None
        m, size = 0.9 * state["exp_avg"] + 0.1 * g, state["exp_avg_sq"].sqrt() + 1e-6
        fresh = 0.999 * state["exp_avg_sq"] + 0.001 * g * g
        along = m / size
        update = along + DECAY * p.detach()
        f, r = float((size / (fresh.sqrt() + 1e-6)).max()), min(1.0, float(along.norm() / update.norm()))
        f = min(max(f * r + 1 - r, 0.9), 1.1)
        moved.append(p.detach() - RATE * float(state["ratio"]) * f * update)
    torch.testing.assert_close(then.path[-1], flat(moved), rtol=0, atol=1e-7)


@pytest.mark.long
@pytest.mark.technique("one_bit_lamb", check=3)
@pytest.mark.parametrize("workers", [2, 4])
def test_second_stage_sends_what_one_bit_adam_sends(workers: int) -> None:
    sent = [on_digits(s.format(3), 5, workers, m)[1][3:] for s, m in ((STAGES, lamb), (ONE_BIT_ADAM, adam))]
    assert sent[0] == sent[1] and min(sent[0]) > 0


@pytest.mark.long
@pytest.mark.parametrize("at", [4, 6, 9])
def test_it_goes_on_from_a_checkpoint(tmp_path: Path, at: int) -> None:
    save = saving(tmp_path, at)
    whole = laconic.simulate(lambda: rounds.train(STAGES.format(6), 13, lamb, after=save), 2).results
    rest = laconic.simulate(lambda: rounds.train(STAGES.format(6), 13, lamb, checkpoint=tmp_path), 2).results
    for a, b in zip(whole, rest, strict=True):
        assert len(b.path) == 13 - at and torch.equal(a.path[-1], b.path[-1])
        assert torch.equal(a.remembered("fresh"), b.remembered("fresh"))


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(ContractError, match="goes on from the state of laconic"):
        rounds.simulated("bsp until step 2, then frozen_lamb", 4, rounds.adamw)
    with pytest.raises(ContractError, match="until step"):
        rounds.simulated("frozen_lamb", 4, lamb)


@pytest.mark.technique("one_bit_lamb", check=3)
@pytest.mark.long
def test_on_text_it_ends_near_lamb_and_below_rates_that_stand_still() -> None:
    """At 0.02, LAMB's best rate of 0.01, 0.02 and 0.04, with 64 windows in a step."""
    make = lambda model: LAMB(  # noqa: E731
        model.parameters(), 0.02, betas=(0.9, 0.99), bias_correction=False, ratio_bounds=(LEAST, MOST)
    )
    one = STAGES.format(66)
    still = one.replace("frozen_lamb", "frozen_lamb(lowest=1, highest=1)")
    plain, adapting, frozen = (
        mean(text.trained(sentence, make, 200, 16, seed).loss for seed in range(2)) for sentence in ("bsp", one, still)
    )
    assert adapting < 1.03 * plain
    assert adapting < frozen
