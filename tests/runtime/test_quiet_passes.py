"""Rules with local steps on processes: their backward passes have no hooks, and they meet in any buckets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.runtime import parameter_buckets
from tests.real.pool import Pool, PoolRank


def hooked(member: PoolRank, strategy: str, steps: int, options: dict[str, Any]) -> list[int]:
    """After each step, how many parameters will call into Python when their gradient is ready."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, strategy, process_group=member.process_group, **options)
    found = [_count(model)]
    for step in range(steps):
        draw = torch.Generator().manual_seed(10 * step + member.rank)
        model(torch.randn(3, 4, generator=draw)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(_count(model))
    laconic.finish(model, optimizer)
    laconic.undistribute(model, optimizer)
    return found


def _count(model: nn.Module) -> int:
    return sum(bool(p._post_accumulate_grad_hooks) for p in model.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("diloco(2)", {}, [0, 0, 0, 0]),
        ("streaming_diloco(4, fragments=2, overlap=1)", {}, [0, 0, 0, 0]),
        ("local(2) / topk(0.5)+ef", {}, [0, 0, 0, 0]),
        ("bsp", {}, [4, 4, 4, 4]),
        ("local(1)", {}, [4, 4, 4, 4]),
        ("bsp until step 2, then local(2)", {}, [4, 4, 0, 0]),
        ("diloco(2) until step 2, then bsp", {}, [0, 0, 4, 4]),
        ("diloco(2)", {"nonfinite": "raise"}, [4, 4, 4, 4]),
    ],
)
def test_hooks_are_where_gradients_are_needed(
    pool: Pool, strategy: str, options: dict[str, Any], expected: list[int]
) -> None:
    assert pool.run(hooked, strategy, 3, options, workers=2) == [expected, expected]


@pytest.mark.parametrize(
    "strategy", ["diloco(2)", "diloco(2) / qsgd+ef", "streaming_diloco(4, fragments=2, overlap=1) / scaled_sign+ef"]
)
def test_models_meet_in_any_buckets_though_no_pass_was_seen(pool: Pool, strategy: str) -> None:
    """A bucket for each of twelve tensors, three of them in flight at a time, or one for all."""
    (first, second), (whole, _) = (pool.run(trained, strategy, limit, workers=2) for limit in (64, 1 << 20))
    assert "streaming" in strategy or torch.equal(first, second)
    assert torch.equal(first, whole)


def trained(member: PoolRank, strategy: str, bucket_bytes: int) -> torch.Tensor:
    usual, parameter_buckets.BUCKET_BYTES = parameter_buckets.BUCKET_BYTES, bucket_bytes
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(12)])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, strategy, process_group=member.process_group)
    for step in range(6):
        model(torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + member.rank))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    parameter_buckets.BUCKET_BYTES = usual
    return torch.cat([p.detach().flatten() for p in model.parameters()])
