"""0/1 Adam: Adam where nothing is left out; one bit, or none; and what all have in common after a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import ContractError
from laconic.sync.frozen_adam import FreezingAdam, LocalFrozenAdam
from tests.sync import rounds, text
from tests.sync.rounds import Run, flat

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SIGNS = "flat+scaled_sign+two_hop(memory=true)+ef / allreduce"
STAGES = f"freezing_adam(kappa={{}}) / {SIGNS} until step {{}}, then local_frozen_adam({{}}) / {SIGNS}"


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def with_decay(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02, weight_decay=0.1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


def plain_adam(steps: int, make: Make) -> Tensor:
    """Adam as its formula without bias correction, on the mean of all workers' gradients."""
    model = rounds.net()
    optimizer = make(model.parameters())
    (group,) = optimizer.param_groups
    (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    means, squares = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    for step in range(steps):
        model.zero_grad()
        losses = [rounds.loss(model, rank, step) for rank in range(rounds.WORKERS)]
        torch.stack(losses).mean().backward()
        with torch.no_grad():
            for p, m, v in zip(model.parameters(), means, squares, strict=True):
                assert p.grad is not None
                g = p.grad if decoupled else p.grad + decay * p
                m.mul_(beta1).add_((1 - beta1) * g)
                v.mul_(beta2).add_((1 - beta2) * g * g)
                p.mul_(1 - rate * decay if decoupled else 1.0)
                p.sub_(rate * m / (v.sqrt() + group["eps"]))
    return flat(model.parameters())


@pytest.mark.long
@pytest.mark.technique("zero_one_adam", check=1)
@pytest.mark.parametrize("make", [adam, with_decay, adamw])
def test_variances_that_never_freeze_make_adam_without_bias_correction(make: Make) -> None:
    for run in rounds.simulated(f"freezing_adam(kappa=1000000) / {SIGNS}", 20, make):
        torch.testing.assert_close(run.path[-1], plain_adam(20, make), rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [adam, with_decay, adamw])
def test_steps_are_counted_and_a_round_ends_with_one_model(make: Make) -> None:
    """Without compression, two steps of the first stage and six of the second: two rounds of one step, two of two."""
    sentence = "freezing_adam until step 2, then local_frozen_adam(doubling=2, longest=2)"
    runs = rounds.simulated(sentence, 8, make)
    torch.testing.assert_close(runs[0].path[1], plain_adam(2, make), rtol=0, atol=1e-9)
    assert {float(run.optimizer.state[p]["step"]) for run in runs for p in run.model.parameters()} == {2.0}
    alike = [all(torch.equal(run.path[step], runs[0].path[step]) for run in runs) for step in range(8)]
    assert alike == [True, True, True, True, False, True, False, True]


@pytest.mark.parametrize("kappa", [1, 2, 3, 5, 16])
def test_gaps_between_updates_double_after_every_kappa_of_them(kappa: int) -> None:
    """The paper's rule, written from gap to gap: 1 for kappa updates, then 2, 4 …; the first is at step one."""
    steps, expected = 400, [1]
    while expected[-1] < steps:
        expected.append(expected[-1] + 2 ** (len(expected) // kappa))
    found = [step for step in range(1, steps + 1) if FreezingAdam(kappa).updates_variances(step)]
    assert found == [step for step in expected if step <= steps]


@pytest.mark.long
def test_variances_are_updated_ever_more_rarely_and_exactly() -> None:
    """The first `kappa` gaps are of one step, the next of two, then of four; what is sent between takes one bit."""
    updated: list[bool] = []

    def look(run: Run, step: int) -> None:
        if laconic.rank() == 0:
            updated.append(not torch.equal(run.memory("exp_avg_sq"), before[-1]))
            before.append(run.memory("exp_avg_sq"))

    before = [torch.zeros(190, dtype=torch.float64)]
    sentence = f"freezing_adam(kappa=2) / {SIGNS}"
    runs = laconic.simulate(lambda: rounds.train(sentence, 30, adam, after=look), 4).results
    times = [step for step, is_one in enumerate(updated, 1) if is_one]
    assert times == [1, 2, 4, 6, 10, 14, 22, 30] == [t for t in range(1, 31) if FreezingAdam(2).updates_variances(t)]
    dense = [step for step, sent in enumerate(runs[0].sent_bytes, 1) if sent == 1.5 * 8 * runs[0].path[0].numel()]
    assert dense == times
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run.path, runs[0].path, strict=True))


@pytest.mark.long
@pytest.mark.technique("zero_one_adam", check=2)
@pytest.mark.parametrize("make", [adam, with_decay, adamw])
def test_rounds_end_with_a_common_model_and_momentum_and_steps_within_send_nothing(make: Make) -> None:
    """Rounds of one, two and four steps, each length for eight steps."""
    momenta: dict[tuple[int, int], Tensor] = {}

    def look(run: Run, step: int) -> None:
        momenta[laconic.rank(), step] = run.memory("exp_avg")

    frozen, steps = 10, 40
    sentence = STAGES.format(4, frozen, "doubling=8, longest=4")
    runs = laconic.simulate(lambda: rounds.train(sentence, steps, make, after=look), 4).results
    ends = [frozen + t for t in (*range(1, 9), 10, 12, 14, 16, 20, 24, 28)]
    for step in range(frozen + 1, steps + 1):
        same = [torch.equal(run.path[step - 1], runs[0].path[step - 1]) for run in runs]
        alike = [torch.equal(momenta[rank, step], momenta[0, step]) for rank in range(4)]
        sent = {run.sent_bytes[step - 1] for run in runs}
        if step in ends:
            bits = -(-runs[0].path[0].numel() // (8 * 4))  # bytes of one owner's
            assert all(same) and all(alike) and sent == {2 * 3 * (bits + 4)}
        else:
            assert sent == {0} and not all(same[1:]) and not all(alike[1:])


def by_hand(frozen: int, steps: int, ends: set[int]) -> list[Tensor]:
    """The mechanism as it is written, exactly averaged: x back by u, u to momentum units, m = -u/L, u back again."""
    models = [rounds.net() for _ in range(rounds.WORKERS)]
    n, rate, beta1, beta2, eps = len(flat(models[0].parameters())), 0.02, 0.9, 0.999, 1e-8
    m, u = (torch.zeros(rounds.WORKERS, n, dtype=torch.float64) for _ in range(2))
    v, total = torch.zeros(n, dtype=torch.float64), 0.0
    for step in range(steps):
        for rank, model in enumerate(models):
            model.zero_grad()
            rounds.loss(model, rank, step).backward()
        g = torch.stack([flat(p.grad for p in model.parameters() if p.grad is not None) for model in models])
        x = torch.stack([flat(model.parameters()) for model in models])
        if step < frozen:
            g = g.mean(dim=0, keepdim=True).expand_as(g)
            v = beta2 * v + (1 - beta2) * g[0] * g[0]
        size = v.sqrt() + eps
        m = beta1 * m + (1 - beta1) * g
        x = x - rate * m / size
        if step >= frozen:
            u, total = u - rate * m / size, total + rate
        if step + 1 - frozen in ends:
            x = x - u
            u = (u * size).mean(dim=0, keepdim=True).expand_as(u)
            m = -u / total
            x = x + u / size
            u, total = torch.zeros_like(u), 0.0
        for model, place in zip(models, x, strict=True):
            nn.utils.vector_to_parameters(place, model.parameters())
    return [flat(model.parameters()) for model in models]


@pytest.mark.long
@pytest.mark.parametrize("steps", [14, 18, 20])
def test_local_steps_are_the_papers(steps: int) -> None:
    """With exact means; at the end of a round, and in the middle of one."""
    sentence = "freezing_adam until step 6, then local_frozen_adam(doubling=2, longest=4)"
    ends = {1, 2, 4, 8, 12}
    assert ends == {t for t in range(1, 15) if LocalFrozenAdam(2, 4).ends_round(t)}
    rounds.assert_same(rounds.simulated(sentence, steps, adam), by_hand(6, steps, ends))


@pytest.mark.long
def test_workers_meet_when_all_is_over() -> None:
    def body() -> tuple[Tensor, Tensor]:
        run = rounds.train(STAGES.format(4, 6, "doubling=1, longest=8"), 19, adam)
        laconic.finish(run.model, run.optimizer)
        return flat(run.model.parameters()), run.memory("exp_avg")

    ends = laconic.simulate(body, 4).results
    assert all(torch.equal(a, b) for end in ends for a, b in zip(end, ends[0], strict=True))


def saving(folder: Path, at: int) -> Callable[[Run, int], None]:
    def save(run: Run, step: int) -> None:
        if step == at:
            laconic.checkpoint(folder, run.model, run.optimizer, step=step)

    return save


@pytest.mark.long
@pytest.mark.parametrize("at", [3, 6, 13])
def test_it_goes_on_from_a_checkpoint(tmp_path: Path, at: int) -> None:
    """In the first stage, at the switch, and within a round: to the bit."""
    sentence, save = STAGES.format(2, 6, "doubling=2, longest=4"), saving(tmp_path, at)
    whole = laconic.simulate(lambda: rounds.train(sentence, 18, adam, after=save), 3).results
    rest = laconic.simulate(lambda: rounds.train(sentence, 18, adam, checkpoint=tmp_path), 3).results
    for a, b in zip(whole, rest, strict=True):
        assert len(b.path) == 18 - at and torch.equal(a.path[-1], b.path[-1])
        assert torch.equal(a.remembered("moved"), b.remembered("moved"))


def test_a_rate_of_zero_moves_nothing_and_sends_nothing() -> None:
    def still(run: Run, step: int) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 0.0 if 12 <= step < 15 else 0.02

    sentence = STAGES.format(4, 6, "")
    for run in laconic.simulate(lambda: rounds.train(sentence, 20, adam, after=still), 2).results:
        assert run.sent_bytes[12:15] == [0, 0, 0] and min(run.sent_bytes[15:]) > 0
        assert torch.equal(run.path[11], run.path[14]) and run.path[-1].isfinite().all()


@pytest.mark.parametrize(
    "sentence", [STAGES.format(2, 6, "doubling=3"), f"bsp until step 6, then frozen_adam / {SIGNS}"]
)
def test_what_never_had_a_gradient_does_not_move(sentence: str) -> None:
    """A sign cannot say zero, and a momentum behind a variance of zero would be divided by epsilon alone."""

    def body() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model: Any = nn.Linear(8, 4)
        before = model.weight.detach().clone()
        model, optimizer = laconic.distribute(model, adam(model.parameters()), sentence)
        for step in range(16):
            x = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + laconic.rank()))
            x[:, 3] = 0
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return before, model.weight.detach()

    for before, after in laconic.simulate(body, 2).results:
        assert torch.equal(before[:, 3], after[:, 3])
        assert (before - after)[:, [0, 1, 2, 4, 5, 6, 7]].abs().min() > 0 and (before - after).abs().max() < 1


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.Adam(p, maximize=True),
    ],
)
@pytest.mark.parametrize("sentence", ["freezing_adam", "bsp until step 2, then local_frozen_adam"])
def test_other_optimizers_are_refused(make: Make, sentence: str) -> None:
    with pytest.raises(ContractError, match="goes on from the state of torch"):
        rounds.simulated(sentence, 4, make)


@pytest.mark.technique("zero_one_adam", check=3)
@pytest.mark.long
def test_on_text_it_ends_near_adam_with_less_than_a_bit() -> None:
    """Adam ends at 2.463, 2.464 and 2.472 with rates of 0.004, 0.008 and 0.016, this at 2.508, 2.515 and 2.560."""
    frozen, steps = 100, 300
    make = lambda model: torch.optim.Adam(model.parameters(), lr=0.004, betas=(0.9, 0.99))  # noqa: E731
    sentence = STAGES.format(16, frozen, "doubling=50")
    plain, decoded = ([text.trained(s, make, steps, seed=seed) for seed in range(2)] for s in ("bsp", sentence))
    assert mean(run.loss for run in decoded) < 1.03 * mean(run.loss for run in plain)
    for run in decoded:
        assert 8 * sum(run.sent_bytes[frozen:]) / (steps - frozen) < run.parameters
