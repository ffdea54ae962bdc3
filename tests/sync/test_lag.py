"""Lazily aggregated gradients on least squares: who uploads when, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import laconic
from laconic.architecture.server.store import Store
from laconic.errors import StrategyError
from laconic.sync.lag import LAG, lagged_sum
from tests.sync import rounds
from tests.sync.stores import Served

WORKERS, DIMENSION = 9, 50


@cache
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """X_m = 1.3^(m-1)·q_m·q_m' + I with unit vectors q_m, and targets."""
    draw = torch.Generator().manual_seed(0)
    q = nn.functional.normalize(torch.randn(WORKERS, DIMENSION, dtype=torch.float64, generator=draw), dim=1)
    sizes = 1.3 ** torch.arange(WORKERS, dtype=torch.float64)
    matrices = sizes[:, None, None] * q[:, :, None] * q[:, None, :] + torch.eye(DIMENSION, dtype=torch.float64)
    return matrices, torch.randn(WORKERS, DIMENSION, dtype=torch.float64, generator=draw)


def objective(x: torch.Tensor) -> float:
    """The mean of all workers' losses."""
    matrices, targets = problem()
    return float(0.5 * (matrices @ x - targets).square().sum(dim=1).mean())


@cache
def least() -> float:
    matrices, targets = problem()
    return objective(torch.linalg.lstsq(matrices.reshape(-1, DIMENSION), targets.reshape(-1)).solution)


def smoothness() -> torch.Tensor:
    """The largest eigenvalue of every worker's Hessian."""
    matrices, _ = problem()
    return torch.linalg.eigvalsh(matrices @ matrices).amax(dim=1)


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(DIMENSION, dtype=torch.float64))

    def forward(self, matrix: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 0.5 * (matrix @ self.x - target).square().sum()


@dataclass
class Descent:
    """The steepest worker's way: how far from the best it was after each step; and everybody's uploads by then."""

    gaps: list[float]
    uploads: list[list[int]]
    path: list[torch.Tensor]

    def reaches(self, gap: float) -> int:
        """How many steps that takes."""
        return 1 + next(k for k, g in enumerate(self.gaps) if g <= gap)


def descend(strategy: str, steps: int) -> Descent:
    """Full gradients, at the rate 1/L."""
    matrices, targets = problem()
    rate = 1 / float(torch.linalg.eigvalsh((matrices @ matrices).mean(dim=0)).max())

    def body() -> tuple[list[float], list[int], list[torch.Tensor]]:
        model, rank = Point(), laconic.rank()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), strategy)
        gaps, uploads, path = [], [], []
        for step in range(steps):
            model(matrices[rank], targets[rank]).backward()
            optimizer.step()
            optimizer.zero_grad()
            path.append(model.x.detach().clone())
            gaps.append(objective(path[-1]) - least() if rank == WORKERS - 1 else 0.0)
            uploads.append(int(optimizer.session.noted.get("uploads", step + 1)))
        return gaps, uploads, path

    results = laconic.simulate(body, WORKERS).results
    return Descent(results[-1][0], [r[1] for r in results], results[-1][2])


@cache
def plain() -> Descent:
    return descend("bsp / ps", 250)


@pytest.mark.long
@pytest.mark.technique("lag", check=1)
@pytest.mark.parametrize("by", ["worker", "server"])
def test_without_laziness_it_is_gradient_descent(by: str) -> None:
    lazy = descend(f"lag(by={by}, xi=0)", 30)
    for mine, theirs in zip(lazy.path, plain().path, strict=False):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert all(uploads == list(range(1, 31)) for uploads in lazy.uploads)


@pytest.mark.technique("lag", check=1)
def test_a_gradient_that_has_not_changed_at_all_is_not_sent() -> None:
    def body() -> float:
        model = nn.Linear(3, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "lag(xi=0)")
        for _ in range(5):
            (model.weight.sum() if laconic.rank() else model.weight.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer.session.noted["uploads"]

    assert laconic.simulate(body, 2).results == [5, 1]


@pytest.mark.parametrize(("xi", "asked"), [(3.9, False), (1.9, True)])
def test_the_server_asks_by_the_fastest_change_of_a_gradient_seen(xi: float, asked: bool) -> None:
    """By hand, one worker at the rate 1: the gradient changes by 4 over a step of length 2, so that L is 2 and the next
    gradient, 2 from there, may differ by 4, squared 16; the threshold is xi times 4 + 4."""
    served = Served(LAG(by="server", xi=xi), workers=1)
    served.push(0, 2.0)
    assert served.pull(0) == {"asked": True}, "nothing is known of L yet"
    served.push(0, -2.0)
    assert served.value == [0.0] and served.store.memory["smoothness"] == {"0": 2.0}
    assert served.pull(0) == {"asked": asked}


@pytest.mark.long
@pytest.mark.technique("lag", check=2)
def test_it_takes_a_quarter_of_the_uploads_and_less_than_twice_the_steps() -> None:
    lazy = descend("lag", 250)
    steps, needed = lazy.reaches(1e-8), plain().reaches(1e-8)
    assert steps <= 2 * needed
    assert 4 * sum(uploads[steps - 1] for uploads in lazy.uploads) <= WORKERS * needed


@pytest.mark.long
@pytest.mark.technique("lag", check=3)
@pytest.mark.parametrize("by", ["worker", "server"])
def test_steep_workers_upload_more(by: str) -> None:
    """By rank; two workers of nearly the same L may differ by a single upload in the other direction."""
    lazy = descend(f"lag(by={by})", 150)
    last = [uploads[-1] for uploads in lazy.uploads]
    assert spearmanr(smoothness().numpy(), last).statistic > 0.95
    assert 2 * last[0] < last[-1]


@pytest.mark.long
@pytest.mark.technique("lag", check=3)
@pytest.mark.parametrize("by", ["worker", "server"])
def test_the_server_steps_on_the_sum_of_what_it_remembers(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[torch.Tensor], list[torch.Tensor], int]] = []
    apply = Store.apply

    def looking(store: Store, gradients: list[torch.Tensor], worker: int, rate: float = 1.0) -> None:
        kept = store.memory["gradients"].values()
        seen.append((gradients, [sum(parts) for parts in zip(*kept, strict=True)], len(kept)))
        torch.testing.assert_close(lagged_sum(store), seen[-1][1])
        apply(store, gradients, worker, rate)

    monkeypatch.setattr(Store, "apply", looking)
    descend(f"lag(by={by})", 40)
    assert len(seen) == 40
    for mean, total, workers in seen:
        assert workers == WORKERS
        torch.testing.assert_close([x * workers for x in mean], total, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_a_server_that_decides_sends_less_too() -> None:
    known = ", ".join(str(float(value)) for value in smoothness())
    for strategy in ("lag(by=server)", f"lag(by=server, smoothness=[{known}])"):
        lazy = descend(strategy, 250)
        steps = lazy.reaches(1e-8)
        assert steps <= 2 * plain().reaches(1e-8)
        assert 1.5 * sum(uploads[steps - 1] for uploads in lazy.uploads) <= WORKERS * plain().reaches(1e-8)


def test_a_server_that_decides_holds_the_whole_model() -> None:
    with pytest.raises(StrategyError, match=r"write ps\(shards=1\)"):
        laconic.simulate(lambda: rounds.train("lag(by=server) / ps(shards=2)", 1), 2)
    with pytest.raises(StrategyError, match="lag needs the compression none"):
        laconic.simulate(lambda: rounds.train("lag / bf16", 1), 2)
