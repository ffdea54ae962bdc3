"""Gradient accumulation: the large batch that local steps have to beat."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.sync.accumulate import GradAccumulation
from tests.sync.rounds import Make, adamw, assert_same, flat, loss, net, sgd, simulated, with_momentum


def loop(
    strategy: str,
    make: Make,
    parts: int,
    by_parts: bool,
    zero_first: bool = False,
    steps: int = 5,
    norm: float | None = None,
) -> Tensor:
    """A worker's batches, each in one piece or micro-batch by micro-batch."""
    model = net()
    model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
    for step in range(steps):
        losses = [loss(model, laconic.rank(), parts * step + part) for part in range(parts)]
        for each in losses if by_parts else [torch.stack(losses).mean()]:
            if zero_first:
                optimizer.zero_grad()
            each.backward()
            if norm is not None:
                laconic.clip_grad_norm_(optimizer, norm)
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
    return flat(model.parameters())


@pytest.mark.technique("grad_accumulation", check=1)
@pytest.mark.parametrize("make", [sgd, with_momentum, adamw])
@pytest.mark.parametrize("zero_first", [False, True])
def test_micro_batches_are_one_batch(make: Make, zero_first: bool) -> None:
    whole = laconic.simulate(lambda: loop("bsp", make, 4, False), 3).results
    parts = laconic.simulate(lambda: loop("accumulate(4)", make, 4, True, zero_first), 3).results
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_the_sum_is_clipped_once_and_its_parts_are_not(make: Make) -> None:
    """A script clips in every micro-step; the norm is small enough to bite in all of them."""
    whole = laconic.simulate(lambda: loop("bsp", make, 4, False, norm=0.02), 3).results
    parts = laconic.simulate(lambda: loop("accumulate(4)", make, 4, True, norm=0.02), 3).results
    free = laconic.simulate(lambda: loop("bsp", make, 4, False), 3).results
    for a, b, c in zip(parts, whole, free, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        assert not torch.allclose(b, c, rtol=0, atol=1e-4)


def test_it_promises_larger_batches_where_there_are_any() -> None:
    """A single micro-batch is synchronous SGD itself, for which nothing need be said."""
    assert GradAccumulation(1).guarantee is None
    assert GradAccumulation(2).guarantee == "synchronous SGD with batches 2 times as large"


def test_one_worker_accumulates_too() -> None:
    whole = laconic.simulate(lambda: loop("bsp", adamw, 3, False), 1).results[0]
    parts = laconic.simulate(lambda: loop("accumulate(3)", adamw, 3, True), 1).results[0]
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("grad_accumulation", check=2)
@pytest.mark.parametrize("period", [2, 5])
def test_it_sends_what_local_steps_send(period: int) -> None:
    """At the same number of samples, counted: the messages of `bsp` divided by the period."""
    accumulated, local, bsp = (
        [sum(run.sent_bytes) for run in simulated(s, 20)] for s in (f"accumulate({period})", f"local({period})", "bsp")
    )
    assert accumulated == local == [sent / period for sent in bsp]


def test_the_exchange_is_part_of_the_last_backward() -> None:
    """Where gradients are the mean over workers and micro-batches, as clipping wants to see them."""

    def body() -> list[float]:
        model: nn.Module = nn.Linear(1, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), "accumulate(2)")
        seen = []
        for step in range(4):
            (model(torch.ones(1, 1)) * (step + 1) * (laconic.rank() + 1)).sum().backward()
            seen.append(model.weight.grad.item())  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
        return seen

    mine, theirs = laconic.simulate(body, 2).results
    assert mine == [1.0, (1 + 2) / 2 * 1.5, 3.0, (3 + 4) / 2 * 1.5]
    assert theirs == [2.0, mine[1], 6.0, mine[3]]


def test_a_parameter_that_only_some_micro_batches_use_is_averaged() -> None:
    def body() -> Tensor:
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        _, optimizer = laconic.distribute(model, sgd(model.parameters()), "accumulate(2)")
        for step in range(4):
            model[step % 2](torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return flat(model.parameters())

    first, second = laconic.simulate(body, 2).results
    assert torch.equal(first, second)
    torch.manual_seed(0)
    before = flat(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]).parameters())
    torch.testing.assert_close(before - first, torch.full_like(before, 0.1))  # two steps of 0.1, half a gradient each


def test_a_phase_begins_with_a_whole_mean() -> None:
    """Three steps of `bsp`, then the rest of a group of four: one micro-batch, which weighs as one."""
    (run, *_) = simulated("bsp until step 3, then accumulate(4)", 4)
    (same, *_) = simulated("bsp", 4)
    torch.testing.assert_close(run.path[3], same.path[3])


@pytest.mark.long
def test_compressed_gradients_are_the_mean_too() -> None:
    exact, rough = simulated("accumulate(4)", 20), simulated("accumulate(4) / bf16+ef", 20)
    assert_same(rough, [run.path[-1] for run in exact], 2e-2)
