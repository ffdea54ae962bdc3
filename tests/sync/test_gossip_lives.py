"""Gossip beside everything else a run does: checkpoints, phases, tiers and maps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.network.network_tree import Level, Network

RULES = ["dpsgd", "d2", "sgp(2)", "detsgrad(0.1)", "matcha", "cooperative(3, auxiliary=2) / torus"]


def train(strategy: str, steps: int, checkpoint: Path | None = None, momentum: float = 0.9) -> torch.Tensor:
    """From a checkpoint if there is one; parameters at the end."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model, optimizer = laconic.distribute(model, optimizer, strategy)
    done = 0 if checkpoint is None else laconic.resume(checkpoint, model, optimizer).get("step", 0)
    for step in range(done, steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + laconic.rank()))
        (model(x) - x[:, :2] - laconic.rank()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if checkpoint is not None:
        laconic.checkpoint(checkpoint, model, optimizer, step=steps)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.long
@pytest.mark.parametrize("strategy", RULES)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, tmp_path: Path) -> None:
    """What was in flight when it was saved is not lost."""
    whole = laconic.simulate(lambda: train(strategy, 9), 4).results
    laconic.simulate(lambda: train(strategy, 5, tmp_path), 4)
    resumed = laconic.simulate(lambda: train(strategy, 9, tmp_path), 4).results
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("strategy", RULES)
def test_a_phase_ends_in_the_mean(strategy: str) -> None:
    """And the next one goes on from there; what optimizers remember would stay as it is on each."""
    apart = laconic.simulate(lambda: train(strategy, 5), 4).results
    turning = f"[{strategy}] until step 5, then bsp"
    together = laconic.simulate(lambda: train(turning, 8, momentum=0.0), 4).results
    assert not all(torch.equal(apart[0], other) for other in apart)
    assert all(torch.equal(together[0], other) for other in together)
    later = laconic.simulate(lambda: train(f"bsp until step 3, then {strategy}", 8), 4).results
    assert not all(torch.equal(later[0], other) for other in later)


def test_sites_gossip_while_machines_average() -> None:
    network = Network(6, (Level(1, 1e9), Level(2, 1e8)))
    out = laconic.simulate(lambda: train("[bsp]@machine > [dpsgd]@site", 6), 6, network).results
    assert all(torch.equal(out[first], out[first + 1]) for first in (0, 2, 4))
    assert not torch.equal(out[0], out[2])


def test_every_part_of_a_model_may_have_its_own_rule() -> None:
    out = laconic.simulate(lambda: train("{matrix: dpsgd / torus, else: d2}", 6), 4).results
    assert all(torch.isfinite(x).all() for x in out) and not torch.equal(out[0], out[1])
