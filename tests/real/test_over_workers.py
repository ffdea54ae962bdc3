"""Means and lists of all workers' values: the same on both engines, and no payload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import laconic
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.real.pool import Pool, PoolRank


def metrics() -> dict[str, Any]:
    rank = laconic.rank()
    return {
        "loss": torch.tensor(0.1 * rank + 0.3, requires_grad=True) * 1.0,
        "correct": 3 * rank,
        "share": np.float32(rank / 3),
        "seen": torch.tensor([rank > 0, True]),
        "by class": {"b": torch.arange(3) * rank, "a": torch.full((2, 1), rank + 0.5, dtype=torch.bfloat16)},
        "nothing": torch.zeros(0),
    }


def evaluated(member: PoolRank | None = None) -> tuple[Any, list[Any], float, float]:
    ledger = connect().ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    found, everyone, alone = laconic.mean(metrics()), laconic.gather(metrics()), laconic.mean(laconic.rank() + 1)
    return found, everyone, alone, ledger.sent_bytes(Kind.PAYLOAD) - before


def assert_right(results: list[Any]) -> None:
    for found, everyone, alone, payload_bytes in results:
        assert payload_bytes == 0
        assert alone == 2.5 and isinstance(alone, float)
        assert found["correct"] == 4.5 and found["share"] == pytest.approx(0.5)
        assert not found["loss"].requires_grad
        torch.testing.assert_close(found["loss"], torch.tensor(0.45))
        torch.testing.assert_close(found["seen"], torch.tensor([0.75, 1.0]))
        torch.testing.assert_close(found["by class"]["b"], torch.tensor([0.0, 1.5, 3.0]))
        assert found["by class"]["a"].dtype == torch.bfloat16 and found["by class"]["a"].tolist() == [[2.0], [2.0]]
        assert [one["correct"] for one in everyone] == [0, 3, 6, 9]
        assert all(isinstance(one["correct"], int) for one in everyone)
        assert [one["seen"].tolist() for one in everyone] == [[False, True], [True, True], [True, True], [True, True]]
        assert everyone[3]["by class"]["b"].tolist() == [0, 3, 6] and everyone[0]["nothing"].shape == (0,)


def test_both_engines_give_the_same(pool: Pool) -> None:
    real, virtual = pool.run(evaluated, workers=4), laconic.simulate(evaluated, 4).results
    assert_right(real)
    assert_right(virtual)
    for one, other in zip(real, virtual, strict=True):
        assert torch.equal(one[0]["loss"], other[0]["loss"])


def test_one_worker_gets_its_own_value() -> None:
    assert laconic.simulate(lambda: (laconic.mean(3), laconic.gather({"a": 1.5})), 1).results == [(3.0, [{"a": 1.5}])]


def different_shapes() -> Tensor:
    found: Tensor = laconic.mean({"logits": torch.zeros(2 + laconic.rank())})
    return found


def different_names() -> list[Any]:
    return laconic.gather({"loss": 1.0} if laconic.rank() else {"loss": 1.0, "accuracy": 0.5})


def test_values_that_do_not_match_are_named() -> None:
    with pytest.raises(laconic.Disagreement, match=r"'logits' is torch.float32\[2\] on rank 0 and torch.float32\[3\]"):
        laconic.simulate(different_shapes, 2)
    with pytest.raises(laconic.Disagreement, match=r"'accuracy' is torch.float64.* on rank 0 and absent on rank 1"):
        laconic.simulate(different_names, 2)


@pytest.mark.parametrize("value", ["high", None, [1.0]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(laconic.ContractError, match="takes numbers, tensors and dicts of these, not"):
        laconic.simulate(lambda: laconic.mean({"accuracy": value}), 2)
