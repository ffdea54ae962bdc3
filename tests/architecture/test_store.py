"""What a shard of a server holds: a step is taken with the settings of the worker that pushed."""

from __future__ import annotations

import pytest
import torch

from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import Store
from laconic.values.tensor_spec import TensorSpec


def store_of(make: type[torch.optim.Optimizer], **settings: float) -> Store:
    x = torch.zeros(3)
    store = Store([Range(0, 0, 3, 0)], [TensorSpec("x", (3,), x.dtype)], [x], make([x], **settings), size=2)
    store.set([x])
    return store


def test_a_step_has_the_rate_that_its_worker_sent_and_the_optimizers_where_it_sent_none() -> None:
    store, gradient = store_of(torch.optim.SGD, lr=0.5), torch.tensor([1.0, -2.0, 4.0])
    store.scalars = {0: {"0.lr": 0.25}}
    store.apply([gradient], 0)
    torch.testing.assert_close(store.values[0].detach(), -0.25 * gradient)
    store.apply([gradient], 0, rate=2.0)
    torch.testing.assert_close(store.values[0].detach(), -0.75 * gradient)
    untold = store_of(torch.optim.SGD, lr=0.5)
    untold.scalars = {0: {"0.lr": 0.25}}
    untold.apply([gradient], 1)
    torch.testing.assert_close(untold.values[0].detach(), -0.5 * gradient)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_settings_that_the_stepping_optimizer_does_not_know_are_left_out(make: type[torch.optim.Optimizer]) -> None:
    """A rule may step with an optimizer of its own; lists become the tuples that optimizers hold."""
    store = store_of(make, lr=0.5)
    before = set(store.optimizer.param_groups[0])
    store.scalars = {0: {"0.lr": 0.125, "0.betas": [0.5, 0.75], "0.wishes": 3.0}}
    store.apply([torch.ones(3)], 0)
    (group,) = store.optimizer.param_groups
    assert set(group) == before and group["lr"] == 0.125
    assert group.get("betas", (0.5, 0.75)) == (0.5, 0.75)
