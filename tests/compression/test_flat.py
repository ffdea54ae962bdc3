"""The scope of compression: all tensors of a message as one, those of each type by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic import registry
from laconic.compression.chain import chain
from laconic.compression.flat import Flat
from laconic.compression.wrapper import Wrapping
from laconic.errors import StrategyError
from tests.compression.table import compressor, meet, spec_of


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


def test_the_scope_alone_compresses_nothing_and_says_so() -> None:
    alone = chain([Flat()])
    assert alone.payload_bytes(spec_of(torch.zeros(40)), 2) == 0
    with pytest.raises(StrategyError, match=r"scope of compression.*flat\+topk\+ef"):
        meet(alone, [torch.zeros(40)])
    with pytest.raises(StrategyError, match=r"flat needs a compressor to wrap; write flat\+topk"):
        compressor("flat")


def test_words_that_wrap_send_no_bytes_of_their_own() -> None:
    wrapping = [entry.target for entry in registry.entries("compression") if getattr(entry.target, "wraps", False)]
    assert len(wrapping) > 5
    for word in wrapping:
        if isinstance(made := word(), Wrapping):
            assert made.payload_bytes(spec_of(torch.zeros(40)), 2) == 0
            with pytest.raises(StrategyError, match="wraps what stands before it"):
                meet(made, [torch.zeros(40)])
