"""A distributed model that DDP wraps afterwards is refused where that happens, on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd

REFUSED = "DistributedDataParallel is about to wrap a model that laconic.distribute"


class Twice(nn.Module):
    """A model around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def model_of_three() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def refusal(act: Callable[[], Any]) -> str:
    try:
        act()
    except laconic.ContractError as error:
        return str(error)
    return "nothing was refused"


def wrap_afterwards(member: PoolRank, strategy: str) -> list[str]:
    group = member.process_group
    model = model_of_three()
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), strategy, process_group=group)
    wrapped: list[nn.Module] = [model, model[0], Twice(model), torch.compile(model)]  # type: ignore[index, list-item]
    refusals = [refusal(lambda part=part: DistributedDataParallel(part, process_group=group)) for part in wrapped]
    for _ in range(4):  # what was refused left nothing behind
        optimizer.zero_grad()
        model(torch.full((2, 5), float(member.rank))).sum().backward()
        optimizer.step()
    DistributedDataParallel(copy.deepcopy(model), process_group=group)  # other parameters
    DistributedDataParallel(model_of_three(), process_group=group)
    model, _ = laconic.undistribute(model, optimizer)
    DistributedDataParallel(model, process_group=group)
    return refusals


@pytest.mark.parametrize("strategy", ["bsp", "local(4)"])
def test_wrapping_a_distributed_model_is_refused_and_others_are_wrapped(pool: Pool, strategy: str) -> None:
    for refusals in pool.run(wrap_afterwards, strategy, workers=2):
        assert len(refusals) == 4
        assert all(text.startswith(REFUSED) for text in refusals), refusals


def prepare_afterwards(member: PoolRank) -> str:
    from accelerate import Accelerator

    model = model_of_three()
    model, _ = laconic.distribute(model, sgd(model.parameters()), "local(4)")
    return refusal(lambda: Accelerator(cpu=True).prepare(model))


def test_accelerates_prepare_is_refused(pool: Pool) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'laconic[rivals]'")
    for text in pool.run(prepare_afterwards, workers=4):
        assert text.startswith(REFUSED) and "prepare the optimizer and the loader, not the model" in text
