"""The memory of sharded training by ZeRO's formulas."""

from __future__ import annotations

import pytest

from laconic.cost.sharded_memory import StateBytes, model_state

MIXED = {0: lambda p: 16, 1: lambda p: 4 + 12 / p, 2: lambda p: 2 + 14 / p, 3: lambda p: 16 / p}


@pytest.mark.parametrize("stage", MIXED)
@pytest.mark.parametrize("owners", [1, 2, 64])
def test_mixed_precision_adam_keeps_what_zero_says(stage: int, owners: int) -> None:
    parameters = 7.5e9  # the paper's example: 120 GB without sharding
    assert model_state(parameters, owners, stage).state == pytest.approx(MIXED[stage](owners) * parameters)


@pytest.mark.parametrize(
    ("half", "states", "expected"),
    [(True, 2, (2, 2, 12)), (True, 1, (2, 2, 8)), (False, 2, (4, 4, 8)), (False, 1, (4, 4, 4))],
)
def test_states_by_precision_and_optimizer(half: bool, states: int, expected: tuple[float, float, float]) -> None:
    each = StateBytes.of(half, states)
    assert (each.weights, each.gradients, each.optimizer) == expected
