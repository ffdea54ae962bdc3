"""What a finished training leaves behind: nothing, once nobody holds its model and optimizer."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import laconic


@pytest.mark.parametrize("strategy", ["bsp", "bsp / topk(0.1)+ef", "local(2)", "asp / none / ps", "bsp / none / dear"])
def test_a_session_is_collected_with_its_model(strategy: str) -> None:
    """A parameter's own hooks are invisible to the garbage collector: they must not keep the session alive."""
    left: list[weakref.ref[object]] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, optimizer, strategy)  # type: ignore[assignment]
        left.append(weakref.ref(optimizer.session))  # type: ignore[attr-defined]
        for _ in range(3):
            model(torch.randn(4, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    laconic.simulate(train, 2)
    gc.collect()
    assert len(left) == 2 and not any(reference() for reference in left)
