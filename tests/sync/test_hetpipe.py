"""hetpipe: what a mini-batch of a pipelined worker misses, waves of one, and what distance buys."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.real.connect import connect
from laconic.sync.hetpipe import HetPipe
from laconic.virtual.compute import Compute
from tests.sync import digits, rounds, serving


def drawn_slots(seed: int, workers: int, stages: int, steps: int) -> tuple[tuple[float, ...], ...]:
    """How long mini-batches take in the slowest of a worker's stages, whose speeds are drawn for each of them."""
    draw = random.Random(seed)
    mean = [[draw.uniform(0.5, 3) for _ in range(stages)] for _ in range(workers)]
    return tuple(
        tuple(max(speed * draw.uniform(0.5, 2) for speed in mean[worker]) for worker in range(workers))
        for _ in range(steps)
    )


def missing(rule: HetPipe, compute: Compute, workers: int, steps: int) -> tuple[int, int]:
    """The most updates of others, and of its own, that the weights of a mini-batch did not hold when it started."""
    others, own = [], []

    def body() -> Any:
        model: Any = serving.Counter(workers, steps)
        words = f"hetpipe({rule.staleness}, wave={rule.wave})"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), words)
        rank = laconic.rank()
        for step in range(steps):
            absent = (model.tags.detach()[:, :step] == 0).sum(dim=1).tolist()
            own.append(absent.pop(rank))
            others.append(max(absent))
            model(rank, step, workers).backward()
            optimizer.step()
            optimizer.zero_grad()
        laconic.finish(model, optimizer)
        return model.tags.detach().clone()

    simulated = laconic.simulate(body, workers, compute=compute)
    assert all((tags == 1).all() for tags in simulated.results), "every update counts once"
    return max(others), max(own)


@pytest.mark.technique("hetpipe", check=1)
@pytest.mark.parametrize(("distance", "wave"), [(0, 1), (0, 3), (1, 2), (2, 4), (1, 1)])
def test_no_mini_batch_misses_more_than_the_bound_and_some_miss_that_many(distance: int, wave: int) -> None:
    rule = HetPipe(distance, wave)
    local = wave - 1
    assert rule.missing_updates == (distance + 1) * (local + 1) + local - 1
    found = []
    for seed in range(4):
        compute = Compute(forward_seconds=1.0, trace=drawn_slots(seed, 3, stages=4, steps=31))
        others, own = missing(rule, compute, 3, 4 * wave + 11)
        assert others <= rule.missing_updates
        assert own == local
        found.append(others)
    assert max(found) == rule.missing_updates


@pytest.mark.technique("hetpipe", check=2)
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum])
def test_waves_of_one_and_no_distance_are_bsp_over_a_server(make: rounds.Make) -> None:
    waves, together = (rounds.simulated(rule, 12, make) for rule in ("hetpipe(0, wave=1)", "bsp / none / ps"))
    for a, b in zip(waves, together, strict=True):
        torch.testing.assert_close(torch.stack(a.path), torch.stack(b.path), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wave", [2, 3, 5])
def test_one_worker_is_sgd_with_gradients_that_come_late(wave: int) -> None:
    """Mini-batch q starts with the updates up to q - wave: plain delayed SGD, written out."""

    def body() -> torch.Tensor:
        model = rounds.net()
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), f"hetpipe(0, wave={wave})")
        for step in range(3 * wave + 1):
            rounds.loss(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        laconic.finish(model, optimizer)
        return rounds.flat(model.parameters())

    (found,) = laconic.simulate(body, 1).results
    model, late = rounds.net(), list[list[torch.Tensor]]()
    optimizer = rounds.sgd(model.parameters())
    for step in range(3 * wave + 1 + wave - 1):
        if step < 3 * wave + 1:
            late.append(list(torch.autograd.grad(rounds.loss(model, 0, step), list(model.parameters()))))
        if step >= wave - 1:
            for parameter, gradient in zip(model.parameters(), late.pop(0), strict=True):
                parameter.grad = gradient
            optimizer.step()
    torch.testing.assert_close(found, rounds.flat(model.parameters()), rtol=0, atol=1e-12)


def train(distance: int, seed: int, seconds: float = 50.0) -> tuple[int, float]:
    """Two fast and two slow pipelines of four stages on the digits for a time: mini-batches through, and the loss."""
    images, labels, *_ = digits.data()
    taken = [0] * 4
    slots = [[x * (2.0 if w >= 2 else 1.0) for w, x in enumerate(row)] for row in drawn_slots(seed, 4, 4, 97)]

    def body() -> float:
        model = digits.network(seed)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, f"hetpipe({distance}, wave=4)")
        worker, rank = connect(), laconic.rank()
        draw = torch.Generator().manual_seed(100 * seed + rank)
        while worker.clock_seconds() < seconds:
            chosen = torch.randint(len(labels), (32,), generator=draw)
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            taken[rank] += 1
        laconic.finish(model, optimizer)
        return serving.evaluate(model)

    compute = Compute(forward_seconds=0.1, trace=tuple(map(tuple, slots)))
    losses = laconic.simulate(body, 4, compute=compute).results
    assert max(losses) == min(losses)
    return sum(taken), losses[0]


@pytest.mark.long
@pytest.mark.technique("hetpipe", check=3)
@pytest.mark.parametrize("seed", range(3))
def test_distance_raises_throughput_and_the_loss_stays(seed: int) -> None:
    through, losses = zip(*(train(distance, seed) for distance in (0, 1, 4, 16)), strict=True)
    assert list(through) == sorted(set(through))
    assert all(loss <= losses[0] * 1.1 + 0.01 for loss in losses)
