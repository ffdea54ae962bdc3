"""Sharded data parallelism is data parallelism: the same parameters, and the bytes of its stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from tests.sharded.training import blocks, steps_of, trained

STAGES: dict[str, tuple[dict[str, Any], int]] = {
    "2: weights stay after forward": ({"reshard_after_forward": False}, 2),
    "3: weights are freed after forward": ({"reshard_after_forward": True}, 3),
}


def plain(steps: int) -> list[torch.Tensor]:
    model: Any = blocks()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, "bsp / none / allreduce(rank)")
    steps_of(model, optimizer, steps, laconic.rank())
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.technique("zero_sharded_dp", check=1)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_sharded_model_has_the_parameters_of_plain_data_parallelism(stage: str, workers: int) -> None:
    """Bit for bit where dividing by the number of workers is exact, before the sum or after it; the traffic of stage 1
    is stage 2's."""
    how, _ = STAGES[stage]
    expected = laconic.simulate(lambda: plain(5), workers).results[0]
    for _, found, _ in laconic.simulate(lambda: trained("none", 5, **how), workers).results:
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0 if workers == 2 else 1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_sends_two_or_three_times_the_shards_of_others(stage: str) -> None:
    how, times = STAGES[stage]
    workers, steps = 4, 3
    padded = sum(-(-p.shape[0] // workers) * workers * p[0].numel() for p in blocks().parameters())
    for _, _, sent in laconic.simulate(lambda: trained("none", steps, **how), workers).results:
        assert sent == 4 * steps * (workers - 1) / workers * times * padded
