"""JointSpar: an unbiased estimate from few layers, probabilities on their budget, and products that are never made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import laconic
from laconic.errors import ContractError, StrategyError
from laconic.optim import LARS
from laconic.real.connect import connect
from laconic.strategy import Strategy
from laconic.sync.jointspar import layers_of, projected
from laconic.worker import Kind
from tests.sync import digits, rounds

STILL = "jointspar(keep=0.5, rate=0)"


def tier_of(optimizer: Any) -> Any:
    return optimizer.session.partitions[0].tiers[0]


def frozen(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


# ------------------------------------------------------------------------------------------------ the estimate


def gradients(strategy: str, steps: int, probabilities: list[float] | None = None) -> Any:
    """At one point, with the same data in every step: what each step's averaged gradient is, and its weights."""

    def body() -> Any:
        model = rounds.net()
        model, optimizer = laconic.distribute(model, frozen(model.parameters()), strategy)
        session, tier = optimizer.session, tier_of(optimizer)
        if probabilities is not None:
            tier.sync_state["p"] = torch.tensor(probabilities, dtype=torch.float64)
            session.gradients.choose_gradients()
        found, weights = [], []
        for _ in range(steps):
            section = session.partitions[0]
            weights.append(
                [1.0] * 3 if probabilities is None else tier.sync.weights(section.context_for(tier), tier.sync_state)
            )
            rounds.loss(model, laconic.rank(), 0).backward()
            found.append(rounds.flat(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(found), torch.tensor(weights)

    return laconic.simulate(body, 2).results[0]


@pytest.mark.long
@pytest.mark.technique("jointspar", check=1)
def test_the_mean_over_draws_is_the_full_gradient() -> None:
    """Steps of a real run are the full gradient times the weights; the weights of 10,000 steps have mean one."""
    probabilities = [0.2, 0.5, 0.8]
    (full, *_), _ = gradients("bsp", 1)
    found, weights = gradients(STILL, 60, probabilities)
    sizes = torch.tensor([p.numel() for p in rounds.net().parameters()])
    torch.testing.assert_close(found, full * weights.repeat_interleave(sizes, dim=1), rtol=1e-12, atol=0)

    def draws() -> Tensor:
        model = rounds.net()
        _, optimizer = laconic.distribute(model, frozen(model.parameters()), STILL)
        session, tier = optimizer.session, tier_of(optimizer)
        state, view = {"p": torch.tensor(probabilities, dtype=torch.float64)}, session.partitions[0].context_for(tier)
        found = []
        for session.progress.steps in range(10_000):
            found.append(tier.sync.weights(view, state))
        return torch.tensor(found, dtype=torch.float64)

    (many,) = laconic.simulate(draws, 1).results
    estimates = full.double() * many.repeat_interleave(sizes, dim=1)
    error = (estimates.mean(dim=0) - full).abs()
    assert (error <= 4 * estimates.std(dim=0) / 100).all()
    assert (many > 0).double().mean(dim=0).tolist() == pytest.approx(probabilities, abs=0.02)
    joint = (many[:, 0] > 0) & (many[:, 2] > 0)
    assert float(joint.double().mean()) == pytest.approx(0.16, abs=0.02)  # layers are drawn apart from each other


# ------------------------------------------------------------------------------------------------ the probabilities


@pytest.mark.long
@pytest.mark.technique("jointspar", check=2)
@settings(max_examples=200)
@given(
    st.lists(st.floats(-800, 5), min_size=1, max_size=40),
    st.floats(0.001, 1),
    st.floats(0, 1),
)
def test_probabilities_keep_to_their_budget(logs: list[float], keep: float, part: float) -> None:
    floor, w = max(part * keep, 1e-6), torch.tensor(logs, dtype=torch.float64)
    budget = keep * len(logs)
    p = projected(w, budget, floor)
    assert float(p.sum()) == pytest.approx(budget, rel=1e-9)
    assert ((p >= floor * (1 - 1e-12)) & (p <= 1)).all()
    inside = (p > floor * (1 + 1e-9)) & (p < 1 - 1e-9)
    ratios = p[inside].log() - w[inside]  # one factor for all that touch no bound; bounds are where it would overshoot
    if inside.any():
        assert float(ratios.max() - ratios.min()) < 1e-6
        assert (w[p >= 1 - 1e-9] + ratios.mean() >= -1e-6).all()
        assert (w[p <= floor * (1 + 1e-9)] + ratios.mean() <= math.log(floor) + 1e-6).all()


def test_the_projection_of_a_case_by_hand() -> None:
    """The largest is capped at 1, the smallest lifted to the floor, and the others scaled by 1.5 to sum to 2."""
    p = projected(torch.tensor([0.9, 0.4, 0.2, 0.001], dtype=torch.float64).log(), 2.0, 0.1)
    torch.testing.assert_close(p, torch.tensor([1.0, 0.6, 0.3, 0.1], dtype=torch.float64))


@pytest.mark.technique("jointspar", check=2)
@pytest.mark.parametrize("keep", [0.4, 0.8])
def test_in_a_run_too(keep: float) -> None:
    seen: list[Tensor] = []

    def body() -> rounds.Run:
        strategy = f"jointspar(keep={keep}, floor=0.05, rate=0.05)"
        return rounds.train(strategy, 25, after=lambda run, step: seen.append(tier_of(run.optimizer).sync_state["p"]))

    laconic.simulate(body, 2)
    for p in seen:
        assert float(p.sum()) == pytest.approx(3 * keep, rel=1e-9)
        assert ((p >= 0.05 - 1e-12) & (p <= 1)).all()
    assert not torch.allclose(seen[-1], torch.full((3,), keep, dtype=torch.float64), atol=0.01)
    assert torch.equal(seen[-1], seen[-2])  # of the two workers, after the same step


@pytest.mark.long
@pytest.mark.technique("jointspar", check=2)
def test_with_all_layers_it_is_bsp() -> None:
    whole, all_drawn = (rounds.simulated(s, 12, rounds.with_momentum) for s in ("bsp", "jointspar(keep=1.0)"))
    for run, other in zip(whole, all_drawn, strict=True):
        assert all(map(torch.equal, run.path, other.path))
        assert run.sent_bytes == other.sent_bytes


@pytest.mark.long
def test_layers_with_large_gradients_are_drawn_more_often() -> None:
    """One layer's gradient is ten times the other's: mirror descent moves p towards their ratio."""

    def body() -> Tensor:
        model = nn.ModuleDict({"large": nn.Linear(4, 1, bias=False), "small": nn.Linear(4, 1, bias=False)})
        strategy = "jointspar(keep=0.5, floor=0.05, rate=0.01)"
        model, optimizer = laconic.distribute(model, frozen(model.parameters()), strategy)
        total = torch.zeros(2, dtype=torch.float64)
        for step in range(400):
            x = torch.ones(2, 4, requires_grad=True)
            (10 * model["large"](x) + model["small"](x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            total += tier_of(optimizer).sync_state["p"] * (step >= 200)
        return total / 200

    (p,) = laconic.simulate(body, 1).results
    assert p[0] > 2 * p[1]


# ------------------------------------------------------------------------------------------------ products not made


def flops_of_a_step(sizes: list[int], batch: int, steps: int) -> tuple[list[int], list[list[int]]]:
    """Of backward, step by step, with the layers that were skipped. The input requires its gradient, so that those of
    activations are the same in every step."""

    def body() -> tuple[list[int], list[list[int]]]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), STILL)
        counts, skipped = [], []
        for step in range(steps):
            off = sorted(optimizer.session.gradients.skipped.skipped)
            x = torch.randn(batch, sizes[0], generator=torch.Generator().manual_seed(step)).requires_grad_()
            loss = model(x).square().mean()
            with FlopCounterMode(display=False) as counter:
                loss.backward()
            assert [p.grad is None for p in model.parameters()] == [k in off for k in range(2 * len(model))]
            counts.append(counter.get_total_flops())
            skipped.append(off[::2])  # a weight and its bias are drawn together
            optimizer.step()
            optimizer.zero_grad()
        return counts, skipped

    return laconic.simulate(body, 2).results[0]


@pytest.mark.long
@pytest.mark.technique("jointspar", check=3)
def test_weight_gradients_of_skipped_layers_are_not_computed() -> None:
    sizes, batch = [16, 24, 8, 32, 4], 5
    counts, skipped = flops_of_a_step(sizes, batch, 24)
    products = [2 * batch * a * b for a, b in pairwise(sizes)]  # of one layer's weight gradient
    both = 2 * sum(products)  # with those of the layers' inputs
    assert counts == [both - sum(products[k // 2] for k in off) for off in skipped]
    assert {len(off) for off in skipped} >= {1, 2, 3}


def test_nothing_is_sent_for_them_and_they_stay_as_they_are() -> None:
    """Bytes of each step are those of the layers that moved, around the ring of two."""

    def body() -> None:
        torch.manual_seed(1)
        model = digits.network(0)
        model, optimizer = laconic.distribute(model, rounds.with_momentum(model.parameters()), STILL)
        ledger, images = connect().ledger, digits.data()[0]
        moved_layers = set()
        for step in range(12):
            before, already = [p.detach().clone() for p in model.parameters()], ledger.sent_bytes(Kind.PAYLOAD)
            model(images[step : step + 4]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
            expected = sum(p.nbytes for p, m in zip(model.parameters(), moved, strict=True) if m)
            assert ledger.sent_bytes(Kind.PAYLOAD) - already == pytest.approx(expected, abs=1e-6)
            assert moved[0] == moved[1] and moved[2] == moved[3]
            moved_layers.add((moved[0], moved[2]))
        assert len(moved_layers) == 4  # also steps with nothing at all

    laconic.simulate(body, 2)


# ------------------------------------------------------------------------------------------------ around it


def test_what_a_script_switches_on_again_does_not_count() -> None:
    def body() -> Tensor:
        model = rounds.net()
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), STILL)
        for step in range(8):
            if again:
                model.requires_grad_(True)
            rounds.loss(model, laconic.rank(), step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return rounds.flat(model.parameters())

    again = False
    expected = laconic.simulate(body, 2).results
    again = True
    assert all(map(torch.equal, laconic.simulate(body, 2).results, expected))


class Tokens(nn.Module):
    """Sparse rows, whose gradients are sent separately, below a layer whose activations are computed twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.layer, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: torch.tanh(self.layer(x)), self.rows(tokens), use_reentrant=False)
        return self.head(hidden)


@pytest.mark.long
def test_sparse_gradients_and_recomputed_activations_go_beside() -> None:
    """Rows are averaged in every step, also where no layer is drawn; with all of them drawn it is `bsp`."""

    def body(strategy: str) -> tuple[list[Tensor], set[int]]:
        model = Tokens()
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), strategy)
        path, drawn = [], set()
        for step in range(12):
            drawn.add(4 - len(optimizer.session.gradients.skipped.skipped))
            draw = torch.Generator().manual_seed(2 * step + laconic.rank())
            model(torch.randint(9, (6,), generator=draw)).square().mean().backward()
            assert model.rows.weight.grad is not None
            optimizer.step()
            optimizer.zero_grad()
            path.append(rounds.flat(model.parameters()))
        return path, drawn

    (path, drawn), (other, _) = laconic.simulate(lambda: body(STILL), 2).results
    assert all(map(torch.equal, path, other))
    assert drawn == {0, 2, 4}
    whole, all_drawn = (laconic.simulate(lambda s=s: body(s), 2).results[0] for s in ("bsp", "jointspar(keep=1.0)"))
    assert all(map(torch.equal, whole[0], all_drawn[0]))


def test_a_checkpoint_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    strategy, path = "jointspar(keep=0.5, floor=0.05, rate=0.05)", tmp_path / "saved"

    def save(run: rounds.Run, step: int) -> None:
        if step == 7:
            laconic.checkpoint(path, run.model, run.optimizer, step=step)

    whole = laconic.simulate(lambda: rounds.train(strategy, 14, rounds.with_momentum, after=save), 2).results
    rest = laconic.simulate(lambda: rounds.train(strategy, 14, rounds.with_momentum, checkpoint=path), 2).results
    for run, resumed in zip(whole, rest, strict=True):
        assert all(map(torch.equal, run.path[7:], resumed.path))


def test_error_memories_wait_for_their_layer() -> None:
    """With a compression of single tensors, what a skipped tensor remembers stays as it is."""

    def body() -> list[bool]:
        model = rounds.net()
        strategy = "jointspar(keep=0.5, rate=0) / topk(0.1)+ef"
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), strategy)
        tier, kept = tier_of(optimizer), []
        names = [name for name, _ in model.named_parameters()]
        for step in range(10):
            before = {n: {k: v.clone() for k, v in m.items()} for n, m in tier.memory.items()}
            skipped = {names[i] for i in optimizer.session.gradients.skipped.skipped}
            rounds.loss(model, laconic.rank(), step).backward()
            optimizer.step()
            optimizer.zero_grad()
            for name in before:
                same = all(torch.equal(before[name][k], v) for k, v in tier.memory[name].items())
                assert same == (name in skipped)
                kept.append(same)
        return kept

    kept = laconic.simulate(body, 2).results[0]
    assert True in kept and False in kept
    with pytest.raises(StrategyError, match="joins tensors"):
        laconic.simulate(lambda: rounds.train("jointspar / flat+topk(0.1)+ef", 1), 2)


def test_infinite_gradients_change_no_probability() -> None:
    def body() -> Tensor:
        model = nn.Linear(2, 1, bias=False)
        model, optimizer = laconic.distribute(model, frozen(model.parameters()), "jointspar(keep=0.5, rate=0.5)")
        for _ in range(6):
            (model(torch.full((1, 2), torch.inf)) * 1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return tier_of(optimizer).sync_state["p"]

    (p,) = laconic.simulate(body, 1).results
    assert torch.equal(p, torch.tensor([0.5], dtype=torch.float64))


def test_a_second_backward_before_the_step_is_refused() -> None:
    def body() -> None:
        model = rounds.net()
        model, _ = laconic.distribute(model, rounds.sgd(model.parameters()), "jointspar(keep=1.0)")
        for _ in range(2):
            rounds.loss(model, 0, 0).backward()

    with pytest.raises(ContractError, match="second backward"):
        laconic.simulate(body, 2)


def test_layers_are_modules_and_the_floor_must_fit() -> None:
    assert layers_of(["0.weight", "0.bias", "scale", "2.inner.weight", "shift"]) == [0, 0, 1, 2, 3]
    with pytest.raises(StrategyError, match="floor below keep"):
        Strategy.parse("jointspar(keep=0.1, floor=0.2)").sync.make()  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_the_reference_task_is_learned_with_half_of_the_layers(optimizer: str) -> None:
    """JointSpar by SGD, and JointSpar-LARS; both near what they reach with every layer in every step."""
    make = (
        digits.sgd(0.2) if optimizer == "sgd" else lambda parameters: LARS(parameters, lr=1.0, momentum=0.0, trust=0.02)
    )
    half, whole = (digits.trained(s, 200, 32, make) for s in ("jointspar(keep=0.5)", "bsp"))
    assert half.accuracy > whole.accuracy - 5
    assert half.sent_bytes < 0.7 * whole.sent_bytes
