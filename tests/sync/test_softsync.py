"""n-softsync: how old gradients are, what their age costs them, and where that saves a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.virtual.compute import Compute
from tests.sync import serving

ONE_SECOND = {"forward_seconds": 0.4, "backward_seconds": 0.5, "step_seconds": 0.1}
WORKERS = 30


@pytest.mark.technique("staleness_aware_lr", check=1)
def test_each_message_is_divided_by_its_age_and_fresh_ones_are_averaged() -> None:
    """The server's model is replayed from the order of messages alone."""
    compute = Compute(**ONE_SECOND, slowness=(1, 1.3, 2.2, 7))
    simulated, pushes = serving.busy("softsync(2)", 60, 4, compute=compute)
    recorded = sorted(push.staleness for push in pushes)
    assert recorded == sorted(serving.versions_of(simulated, per_update=2)) and recorded[-1] > 2
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    x, version, read, waiting = 1.0, 0, {}, []
    for _, sender, kind in hosted.calls:
        if kind in ("peek", "pull"):
            read[sender] = (version, x)
        elif kind == "push":
            then, point = read[sender]
            waiting.append(point / max(1, version - then))
            if len(waiting) == 2:
                x, version, waiting = x - 0.1 * sum(waiting) / 2, version + 1, []
    assert float(pushes[-1].model) == pytest.approx(x, rel=1e-12)


@pytest.mark.technique("staleness_aware_lr", check=1)
def test_fresh_gradients_are_a_plain_average() -> None:
    """One worker's are never late, and n = 1 makes them one step each: serial SGD."""
    _, alone = serving.busy("softsync", 12, 1, curvature=(1.0, 0.3))
    x = torch.ones(2, dtype=torch.float64)
    for _ in range(12):
        x = x - 0.1 * x * torch.tensor([1.0, 0.3], dtype=torch.float64)
    assert alone[-1].staleness == 0
    torch.testing.assert_close(alone[-1].model, x)


@pytest.mark.long
@pytest.mark.technique("staleness_aware_lr", check=2)
@pytest.mark.parametrize("n", [1, 4, 15, 30])
def test_the_mean_staleness_is_about_n(n: int) -> None:
    _, pushes = serving.busy(f"softsync({n})", 12 * WORKERS, WORKERS, compute=Compute(**ONE_SECOND))
    late = np.array([push.staleness for push in pushes[2 * WORKERS :]])
    assert late.mean() == pytest.approx(n, rel=0.1)
    assert (late > 2 * n).mean() < 0.001


@pytest.mark.long
@pytest.mark.technique("staleness_aware_lr", check=3)
def test_it_converges_where_a_fixed_rate_does_not() -> None:
    """A regression with noisy labels, 40 samples per worker, at a rate of half the inverse curvature."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(WORKERS, 40, 5, generator=draw)
    y = x @ torch.ones(5, 1) + torch.randn(WORKERS, 40, 1, generator=draw)

    def final(strategy: str) -> float:
        def body() -> float:
            model: nn.Module = nn.Linear(5, 1, bias=False)
            nn.init.zeros_(model.weight)  # type: ignore[arg-type]
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
            model, optimizer = laconic.distribute(model, optimizer, strategy)
            for _ in range(25):
                (model(x[laconic.rank()]) - y[laconic.rank()]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            laconic.finish(model, optimizer)
            return (model(x) - y).square().mean().item()

        return float(laconic.simulate(body, WORKERS, compute=Compute(**ONE_SECOND)).results[0])

    together, first = final("bsp"), y.square().mean().item()
    assert together < 0.25 * first
    assert final(f"softsync({WORKERS})") == pytest.approx(together, rel=0.05)
    assert not final("asp(share=1)") < 10 * first
