"""Figures that papers publish of graphs, of rules over time and of bounds, reproduced by running what declares them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.real.connect import connect
from laconic.strategy import Word
from laconic.theory.delayed import momentum
from laconic.theory.problems import Quadratic
from laconic.theory.simulate.arrivals import arrivals, reads
from laconic.theory.simulate.delayed import delayed_sgd
from laconic.topology.mixing import Mixing
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync import rounds, serving

# ---------------------------------------------------------------------------------------------- graphs


def mixing(word: Word, workers: int) -> Mixing:
    made: Mixing = word.make().mixing(workers)
    return made


@pytest.mark.evidence("one_peer_exponential")
@pytest.mark.parametrize("power", range(1, 8))
def test_one_peer_a_step_averages_exactly_after_log2_n_steps(power: int) -> None:
    """Ying et al., NeurIPS 2021: log2 n one-peer exponential graphs average exactly, and no fewer do."""
    n, graph, product = 2**power, mixing(Word("one_peer_exponential"), 2**power), np.eye(2**power)
    for step in range(power):
        assert not np.array_equal(product, np.full((n, n), 1 / n))
        product = graph.at(step) @ product
    assert np.array_equal(product, np.full((n, n), 1 / n))


@pytest.mark.evidence("star")
@pytest.mark.parametrize("m", [2, 4, 8, 16])
def test_the_best_elastic_matrix_leaves_m_over_m_plus_two(m: int) -> None:
    """Wang and Joshi, JMLR 2021: elastic averaging of m workers around a centre has eigenvalues 1, 1 - α and 1 - (m +
    1)α, and contracts best at α = 2/(m + 2), by ζ = m/(m + 2)."""
    best = 2 / (m + 2)
    graph = mixing(Word.of("star", best), m + 1)
    np.testing.assert_allclose(graph.eigenvalues, [1, *[1 - best] * (m - 1), 1 - (m + 1) * best], atol=1e-12)
    assert graph.rho**0.5 == pytest.approx(m / (m + 2))
    for other in (0.95 * best, 1.05 * best):
        assert mixing(Word.of("star", other), m + 1).rho > graph.rho


# ---------------------------------------------------------------------------------------------- rules over time


@pytest.mark.long
@pytest.mark.evidence("diloco")
def test_diloco_sends_five_hundred_times_less() -> None:
    """Douillard et al., abstract: 500 times less communication than synchronous training, by rounds of 500 steps."""
    ours = rounds.simulated("diloco(period=500)", 500, rounds.adamw, workers=2)
    theirs = rounds.simulated("bsp", 2, rounds.adamw, workers=2)
    for mine, every in zip(ours, theirs, strict=True):
        assert every.sent_bytes[0] == every.sent_bytes[1]
        assert 500 * every.sent_bytes[0] / sum(mine.sent_bytes) == 500


@pytest.mark.long
@pytest.mark.evidence("intellect1_int8_ring")
def test_eight_bits_after_a_hundred_steps_are_four_hundred_times_less() -> None:
    """Jaghouar et al.: 400 times less communication than data-parallel training. Tables of buckets, which come on top,
    are 0.4 % of a model of half a million values between two."""

    def body(strategy: str, steps: int) -> float:
        model: Any = nn.Linear(1000, 500, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-3), strategy)
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        for _ in range(steps):
            model(torch.ones(1, 1000)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    ring = laconic.simulate(lambda: body("intellect1_int8_ring", 100), 2).results
    plain = laconic.simulate(lambda: body("bsp", 1), 2).results
    for mine, every in zip(ring, plain, strict=True):
        assert 100 * every / mine == pytest.approx(400, rel=0.01), (mine, every)


@pytest.mark.long
@pytest.mark.evidence("large_batch_sgd")
def test_a_batch_of_8192_is_learnt_at_3_2_after_five_epochs() -> None:
    """Goyal et al.: η = 0.1·B/256 is 3.2 for a batch of 8192, to which it grows from 0.1 by a constant amount in every
    step of the first five epochs: 780 of ImageNet's."""

    def body() -> list[float]:
        model: Any = nn.Linear(1, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[float] = []
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["lr"]))
        model, optimizer = laconic.distribute(model, optimizer, "large_batch_sgd")
        for _ in range(782):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        return seen

    found = laconic.simulate(body, 1).results[0]
    assert found[:780] == pytest.approx([0.1 + 3.1 * step / 780 for step in range(780)])
    assert found[780:] == pytest.approx([3.2, 3.2])


@pytest.mark.long
@pytest.mark.evidence("staleness_aware_lr")
@pytest.mark.parametrize("n", [1, 15, 30])
def test_gradients_of_n_softsync_are_n_steps_old(n: int) -> None:
    """Zhang et al.: among 30 learners the mean staleness of n-softsync is n, and it rarely exceeds 2n."""
    compute = Compute(forward_seconds=0.4, backward_seconds=0.5, step_seconds=0.1)
    _, pushes = serving.busy(f"softsync({n})", 360, 30, compute=compute)
    late = np.array([push.staleness for push in pushes[60:]])
    assert late.mean() == pytest.approx(n, rel=0.1)
    assert (late > 2 * n).mean() < 0.001


@pytest.mark.long
@pytest.mark.evidence("lag")
def test_smooth_workers_upload_seldom() -> None:
    """Chen et al., lemma on lazy communication: a worker with L² ≤ ξ/(α²M²d) uploads at most k/(d + 1) times in k
    steps. (With the mean of losses, α·M is the learning rate.) Here for d = 10, 3 and 1, and two who are not smooth."""
    steps, rate, xi = 120, 0.5, 0.1
    smoothness = [(xi / d) ** 0.5 / rate for d in (10, 3, 1)] + [3.0, 4.5]

    def body() -> int:
        draw = torch.Generator().manual_seed(laconic.rank())
        bend = smoothness[laconic.rank()] * torch.tensor([1.0, 0.6, 0.3], dtype=torch.float64)
        goal = torch.randn(3, generator=draw, dtype=torch.float64)
        model: Any = nn.Linear(3, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate)
        model, optimizer = laconic.distribute(model, optimizer, f"lag(xi={xi})")
        for _ in range(steps):
            (0.5 * bend * (model.weight[0] - goal).square()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return int(optimizer.session.noted["uploads"])

    uploads = laconic.simulate(body, len(smoothness)).results
    for most, found in zip((steps / 11, steps / 4, steps / 2), uploads[:3], strict=True):
        assert found <= most
    assert max(uploads[:3]) < min(uploads[3:])


# ---------------------------------------------------------------------------------------------- bounds


@pytest.mark.evidence("asynchrony_momentum")
@pytest.mark.parametrize(("workers", "expected"), [(4, 0.75), (10, 0.9), (16, 0.9375)])
def test_asynchrony_begets_the_published_momentum(workers: int, expected: float) -> None:
    """Mitliagkas et al.: M workers with exponential times add a momentum of 1 - 1/M, and the step is η/M.
    Fitted to the mean of 2000 simulated runs, to 0.05 and 20 %."""
    objective, start, rate, steps = Quadratic((1.0, 0.5, 0.25)), np.ones(3), 0.2, 100
    read = reads(arrivals([1.0] * workers, steps, runs=2000, seed=workers), workers)
    path = np.array([start, *(s.x.mean(axis=0) for s in delayed_sgd(objective, start, read, rate, runs=2000))])
    found, step = momentum.fit(path, objective.gradient(path))
    assert momentum.implicit_momentum(workers) == expected == pytest.approx(found, abs=0.05)
    assert step == pytest.approx(rate / workers, rel=0.2)
