"""CHOCO-SGD: public copies that neighbours share, a mean that only gradients move, and consensus from a tenth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import StrategyError
from laconic.real.connect import connect
from laconic.sync.choco import ChocoSGD
from laconic.worker import Kind
from tests.sync.gossiping import DIMENSION, Array, draws, mixing_of, sgd, walk

CODECS = ["none", "topk(0.2)", "topk(0.4)+bf16", "qsgd(levels=1, bucket=8)", "scaled_sign", "int8", "cast_bf16"]
GAMMA = 0.3


def held(tier: Any) -> tuple[Array, Array]:
    """A worker's public copy and its sum of neighbours' copies."""
    return tuple(tier.sync_state[f"{name}.0"].numpy().copy() for name in ("copy", "sum"))  # type: ignore


@pytest.mark.technique("choco_sgd", check=1)
@pytest.mark.parametrize("graph", ["ring", "star", 'edges("0-1,1-2,2-3,3-4")'])
def test_without_compression_it_is_dpsgd_that_steps_first(graph: str) -> None:
    seen = walk(f"choco_sgd(gamma=1.0) / {graph}", 5, 15, targets=draws(5, DIMENSION))
    weights = mixing_of(f"dpsgd / {graph}", 5).at(0)
    for step in range(15):
        expected = weights @ (seen.x[step] - 0.1 * seen.gradients[step])
        np.testing.assert_allclose(seen.x[step + 1], expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("choco_sgd", check=2)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_alone_move_the_mean(codec: str, momentum: float) -> None:
    strategy = f"choco_sgd(gamma={GAMMA}) / {codec} / ring"
    seen = walk(strategy, 6, 20, sgd(0.1, momentum), draws(6, DIMENSION) ** 2, draws(6, DIMENSION, seed=1))
    velocity, mean = np.zeros(DIMENSION), seen.mean[0]
    for step in range(20):
        velocity = momentum * velocity + seen.gradients[step].mean(axis=0)
        mean = mean - 0.1 * velocity
        np.testing.assert_allclose(seen.mean[step + 1], mean, atol=1e-6)
    assert seen.disagreement[-1] > 1e-3


@pytest.mark.long
@pytest.mark.technique("choco_sgd", check=2)
@pytest.mark.parametrize("codec", CODECS)
def test_neighbours_agree_on_everybodys_copy(codec: str) -> None:
    """Each sum is what its owner's neighbours' own copies give, at every step."""
    strategy = f"choco_sgd(gamma={GAMMA}) / {codec} / ring"
    seen = walk(strategy, 5, 12, targets=draws(5, DIMENSION), look=held)
    weights = mixing_of(strategy, 5).at(0)
    for row in seen.seen:
        hats, sums = (np.stack(part) for part in zip(*row, strict=True))
        np.testing.assert_allclose(sums, weights @ hats, atol=1e-12)


class Wide(nn.Module):
    """Forty numbers that no gradient moves."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(40))

    def forward(self) -> Tensor:
        return 0.0 * self.x.sum()


def consensus(strategy: str, steps: int, workers: int = 8) -> tuple[Array, Array, list[float]]:
    """How far models that begin apart are from their first mean, by step; that mean's change; bytes of payload."""
    starts = torch.randn(workers, 40, generator=torch.Generator().manual_seed(0))

    def body() -> tuple[Array, float]:
        model: Any = Wide()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0), strategy)
        model.x.data.copy_(starts[laconic.rank()])
        seen, before = [], connect().ledger.sent_bytes(Kind.PAYLOAD)
        for _ in range(steps):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(model.x.detach().double().numpy().copy())
        return np.stack(seen), connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    results = laconic.simulate(body, workers).results
    x = np.stack([seen for seen, _ in results], axis=1)
    first = starts.double().mean(0).numpy()
    return np.linalg.norm(x - first, axis=(1, 2)), np.abs(x.mean(1) - first).max(axis=1), [sent for _, sent in results]


@pytest.mark.long
@pytest.mark.technique("choco_sgd", check=3)
def test_a_ring_of_eight_agrees_from_a_tenth_of_the_coordinates() -> None:
    """Linearly, and on the mean, to which plain gossip of what was selected of the models does not come: there, a
    worker receives its neighbours' tenth alone."""
    apart, moved, sent = consensus("choco_sgd(gamma=0.2) / topk(0.1) / ring", 161)
    assert moved.max() < 1e-5
    assert apart[-1] < 0.001 * apart[0]
    logs = np.log(apart[::40])
    assert (np.diff(logs) < -1.5).all(), "the same factor over again"
    assert set(sent) == {161 * 2 * (4 * 4 + 3)}, "two neighbours; four values, and their places in six bits"
    weights = mixing_of("dpsgd / ring", 8).at(0)
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(0)).double().numpy()
    mean = x.mean(0)
    for _ in range(500):
        decoded = np.where(np.abs(x) >= np.sort(np.abs(x), axis=1)[:, [-4]], x, 0.0)
        x = np.diag(weights)[:, None] * x + (weights - np.diag(np.diag(weights))) @ decoded
    assert np.linalg.norm(x - mean) > 0.3 * np.linalg.norm(mean) * np.sqrt(8)


@pytest.mark.parametrize(
    ("contraction", "gap", "distance", "gamma"),
    [(1.0, 1.0, 1.0, 1 / 15), (0.5, 1.0, 1.0, 0.5 / 19), (1.0, 0.5, 2.0, 0.25 / 24.25), (0.1, 0.5, 0.0, 0.025 / 7.85)],
)
def test_the_theorys_step_is_the_papers(contraction: float, gap: float, distance: float, gamma: float) -> None:
    """Theorem 2 by hand: ρ²δ/(16ρ + ρ² + 4β² + 2ρβ² − 8ρδ)."""
    assert ChocoSGD.consensus_step(contraction, gap, distance) == pytest.approx(gamma)


@pytest.mark.long
def test_the_theorys_step_converges_too() -> None:
    mixing = mixing_of("dpsgd / ring", 8)
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(mixing.at(0))))
    gamma = ChocoSGD.consensus_step(0.1, 1 - eigenvalues[-2], float(np.linalg.norm(np.eye(8) - mixing.at(0), 2)))
    assert 0 < gamma < 0.01
    apart, _, _ = consensus(f"choco_sgd(gamma={gamma:.6f}) / topk(0.1) / ring", 30)
    assert apart[-1] < apart[0]


@pytest.mark.parametrize("text", ["topk+ef", "randk", "topk(index=golomb)", "int8+two_hop"])
def test_what_no_neighbour_could_read_is_refused(text: str) -> None:
    """Before the first step, whose computation would be lost."""
    with pytest.raises(StrategyError, match="write"):
        walk(f"choco_sgd / {text} / ring", 3, 0)


def test_other_rules_do_not_take_codecs() -> None:
    with pytest.raises(StrategyError, match="dpsgd needs the compression"):
        walk("dpsgd / topk / gossip / ring", 3, 1)


def test_settled_workers_have_met() -> None:
    def body() -> Tensor:
        model: Any = Wide()
        model, optimizer = laconic.distribute(
            model, torch.optim.SGD(model.parameters(), lr=0.1), "choco_sgd / topk(0.1)"
        )
        model.x.data.fill_(float(laconic.rank()))
        for _ in range(3):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
        laconic.finish(model, optimizer)
        return model.x.detach().clone()

    results = laconic.simulate(body, 4).results
    assert all(torch.equal(x, results[0]) for x in results)
    torch.testing.assert_close(results[0], torch.full((40,), 1.5))
