"""A backward pass that fails holds up no other model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import laconic
from laconic.errors import ContractError
from laconic.real.connect import connect
from laconic.runtime.multi_model_order import MultiModelOrder


class Twice(nn.Module):
    """Fires its gradients twice, as a shared weight does under reentrant checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=True)
        return self.head(x)


@pytest.mark.long
def test_a_model_that_was_refused_gives_its_turn_away() -> None:
    def run() -> bool:
        broken: nn.Module = Twice()
        made, _ = laconic.distribute(broken, torch.optim.SGD(broken.parameters(), lr=0.1))
        with pytest.raises(ContractError, match="arrived twice"):
            made(torch.ones(2, 4, requires_grad=True)).sum().backward()
        order, other = MultiModelOrder.of(connect()), nn.Linear(4, 1)
        model, _ = laconic.distribute(other, torch.optim.SGD(other.parameters(), lr=0.1))
        had: list[bool] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: had.append(len(order._entries) == 1))
        model(torch.ones(2, 4)).sum().backward()
        return all(had) and bool(had)

    assert all(laconic.simulate(run, 2).results)
