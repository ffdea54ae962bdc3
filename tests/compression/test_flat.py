"""The scope of compression: all tensors of a message as one, those of each type by themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import laconic


class TwoTypes(nn.Module):
    """A model with parameters in float32 and in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.single, self.double_ = nn.Linear(4, 5), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.double_(self.single(x).double())


def _train() -> list[Tensor]:
    torch.manual_seed(1)
    model = TwoTypes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, "local(2) / flat+topk(1.0) / allreduce")
    draw = torch.Generator().manual_seed(7 + laconic.rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 4, generator=draw)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_tensors_of_two_types_are_joined_by_type() -> None:
    first, second = laconic.simulate(_train, workers=2).results
    assert {x.dtype for x in first} == {torch.float32, torch.float64}
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
