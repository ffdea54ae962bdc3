"""Both examples, own loop against PyTorch DDP: bit-equal after 50 steps with two workers, in float32 and bfloat16."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.real.pool import Pool, PoolRank
from tests.real.race import by_ddp, by_laconic, difference, sgd

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = {torch.float64: 50, torch.float32: 50, torch.bfloat16: 3}  # the last may take a second each


def example(name: str) -> ModuleType:
    if f"example_{name}" not in sys.modules:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[f"example_{name}"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[f"example_{name}"]


def digits(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    module = example("digits")
    training, _ = module.load_data(0)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, k: int) -> None:
        chosen = torch.randint(len(training), (32,), generator=torch.Generator().manual_seed(1000 * rank + k))
        images, labels = training[chosen]
        nn.functional.cross_entropy(model(images.to(dtype)).double(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda: module.build_model(0).to(dtype), step, sgd


def chars(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    module = example("chars")
    shape = module.Shape(depth=2, width=64, context=32)
    text = torch.randint(40, (5000,), generator=torch.Generator().manual_seed(0))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, k: int) -> None:
        inputs, targets = module.draw_batch(text, shape.context, 4, (0, k, rank))
        nn.functional.cross_entropy(model(inputs).double().flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return (
        lambda: module.build_model(0, 40, shape).to(dtype),
        step,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )


def race(member: PoolRank, name: str, dtype: torch.dtype, strategy: str) -> float:
    build, step, optimizer = {"digits": digits, "chars": chars}[name](dtype)
    ours = by_laconic(member, build, step, STEPS[dtype], optimizer, strategy)
    return difference(by_ddp(member, build, step, STEPS[dtype], optimizer), ours)


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits", "chars"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", ["bsp", "bsp / allreduce(rank)", "bsp / sequential"])
def test_two_workers_have_the_bits_of_ddp(pool: Pool, name: str, dtype: torch.dtype, strategy: str) -> None:
    assert pool.run(race, name, dtype, strategy, workers=2) == [0.0, 0.0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits", "chars"])
def test_four_workers_agree_in_float64(pool: Pool, name: str) -> None:
    assert max(pool.run(race, name, torch.float64, "bsp", workers=4)) <= 1e-9
