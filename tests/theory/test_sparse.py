"""Top-k SGD with memory is away from SGD by the mean of the memories: exactly, boundedly, in proportion to the rate."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import laconic
from laconic.compression.topk import largest
from laconic.errors import LaconicError
from laconic.theory.sparse import drift_bound, lag, ratio
from tests.sync.digits import data, network

WORKERS, SHARE = 4, 0.01


def topk(x: Tensor) -> Tensor:
    places = largest(x, max(1, math.ceil(SHARE * x.numel() - 1e-9)))
    return torch.zeros_like(x).index_put_((places,), x[places])


def flat(parameters: Any) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters])


@cache
def live(rate: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """A run of digits on virtual workers with 1 % said of the whole model: the points, and every worker's gradients and
    memories, step by step; points begin with the first, memories with nothing."""

    def body() -> tuple[Tensor, Tensor, Tensor]:
        images, labels, _, _ = data()
        mine = torch.arange(laconic.rank(), len(labels), laconic.size())
        draw = torch.Generator().manual_seed(laconic.rank())
        model: Any = network(0)
        shadow = network(0)
        sentence = f"flat+topk({SHARE})+ef(inside=true) / sequential"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), sentence)
        memory = optimizer.session.partitions[0].tiers[0].memory
        points, gradients, memories = [flat(model.parameters())], [], []
        for _ in range(steps):
            chosen = mine[torch.randint(len(mine), (16,), generator=draw)]
            with torch.no_grad():
                torch.nn.utils.vector_to_parameters(points[-1], shadow.parameters())
            loss = functional.cross_entropy(shadow(images[chosen]), labels[chosen])
            gradients.append(flat(torch.autograd.grad(loss, list(shadow.parameters()))))
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            points.append(flat(model.parameters()))
            (state,) = memory.values()
            memories.append(state["error"].reshape(-1).clone())
        return torch.stack(points), torch.stack(gradients), torch.stack(memories)

    points, gradients, memories = zip(*laconic.simulate(body, WORKERS).results, strict=True)
    assert all(torch.equal(p, points[0]) for p in points)
    return points[0], torch.stack(gradients, dim=1), torch.stack(memories, dim=1)


def in_order_of_arrival(vectors: Tensor) -> Tensor:
    """A message's tensors lie in the order in which backward makes them: the last first."""
    sizes = [p.numel() for p in network(0).parameters()]
    return torch.cat(list(reversed(vectors.split(sizes, dim=-1))), dim=-1)


@pytest.mark.long
@pytest.mark.technique("alistarh_topk_theory", check=1)
def test_the_point_is_ahead_of_sgds_by_the_mean_of_the_memories() -> None:
    """v - x, where x goes along the mean gradients at v: to float rounding, in every step of a live run."""
    rate = 0.3
    points, gradients, memories = live(rate, 40)
    x = points[0].double()
    for step in range(40):
        x = x - rate * gradients[step].double().mean(dim=0)
        apart = in_order_of_arrival(points[step + 1].double() - x)
        torch.testing.assert_close(apart, memories[step].double().mean(dim=0), rtol=0, atol=1e-5)
    assert float(apart.norm()) > 0.1


@pytest.mark.technique("alistarh_topk_theory", check=2)
@pytest.mark.long
def test_xi_stays_bounded_and_the_drift_is_proportional_to_the_rate() -> None:
    """Between rates that differ by two, of the mean over the second half of the run: drifts differ by two to a fifth.
    xi stays of the order of 1 (its largest value is reported in a failure)."""
    drifts = []
    for rate in (0.1, 0.05, 0.025):
        _, gradients, memories = live(rate, 40)
        before, found = torch.zeros_like(memories[0]), []
        for step in range(40):
            found.append(lag(rate * in_order_of_arrival(gradients[step]), before, topk))
            before = memories[step]
            assert found[-1].drift == pytest.approx(float(before.mean(dim=0).norm()), rel=1e-3, abs=1e-6)
        xi = [one.xi for one in found]
        assert max(xi) < 5, xi
        drifts.append(sum(one.drift for one in found[20:]) / 20)
    for fast, slow in pairwise(drifts):
        assert fast / slow == pytest.approx(2, rel=0.2)


@pytest.mark.long
@given(st.integers(2, 60), st.floats(0.02, 1), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_drift_is_within_the_geometric_sum(numel: int, share: float, workers: int, seed: int) -> None:
    k = max(1, math.ceil(share * numel))
    draw = torch.Generator().manual_seed(seed)
    memory, norms = torch.zeros(workers, numel, dtype=torch.float64), []
    for _ in range(30):
        steps = torch.randn(workers, numel, generator=draw, dtype=torch.float64)
        wanted = steps + memory
        sent = torch.stack([torch.zeros_like(w).index_put_((p := largest(w, k),), w[p]) for w in wanted])
        memory = wanted - sent
        norms.append(float(steps.square().sum(dim=1).mean().sqrt()))
        assert float(memory.mean(dim=0).square().sum()) <= drift_bound(norms, numel, k) * (1 + 1e-9) + 1e-12


def test_a_slack_that_does_not_shrink_is_refused() -> None:
    assert ratio(100, 10, 0.1) == pytest.approx(0.99)
    with pytest.raises(LaconicError, match="must be below"):
        ratio(100, 10, 0.12)


def test_one_worker_has_no_xi() -> None:
    """The message of the mean over one worker is that worker's own message."""
    x = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    found = lag(x, torch.zeros_like(x), topk)
    assert found.xi == 0 and found.drift == found.memory == pytest.approx(float((x[0] - topk(x[0])).norm()))
