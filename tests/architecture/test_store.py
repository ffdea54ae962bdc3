"""What a shard of a server holds: a step is taken with the settings of the worker that pushed."""

from __future__ import annotations

import pytest
import torch

from laconic.architecture.server import read_snapshots
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


def test_every_update_is_counted_and_no_replacement_is() -> None:
    store, change = store_of(torch.optim.SGD, lr=0.5), torch.tensor([1.0, -2.0, 4.0])
    store.add([change])
    store.add([change], 0.5)
    assert store.version == 2 and store.values[0].tolist() == [1.5, -3.0, 6.0]
    store.apply([change], 0)
    assert store.version == 3 and store.values[0].tolist() == [1.0, -2.0, 4.0]
    store.set([torch.zeros(3)])
    assert store.version == 3 and not store.values[0].any()


def test_each_shard_continues_with_its_part_of_the_optimizers_state() -> None:
    """Momentum and counts that the user's optimizer has when the servers take over, cut as the values are."""
    torch.manual_seed(0)
    x, rest = torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(2))
    specs = [TensorSpec("x", (3, 4), x.dtype), TensorSpec("rest", (2,), x.dtype)]
    optimizer = torch.optim.Adam([x, rest], lr=0.1)
    first, second = ([torch.randn_like(p) for p in (x, rest)] for _ in range(2))
    for p, gradient in zip((x, rest), first, strict=True):
        p.grad = gradient
    optimizer.step()
    ranges = [Range(0, 0, 5, 0), Range(0, 5, 12, 1), Range(1, 0, 2, 1)]
    stores = [Store([r for r in ranges if r.shard == k], specs, [x, rest], optimizer, size=1) for k in range(2)]
    with torch.no_grad():
        stores[0].set([x.reshape(-1)[:5]])
        stores[1].set([x.reshape(-1)[5:], rest])
    stores[0].apply([second[0].reshape(-1)[:5]], 0)
    stores[1].apply([second[0].reshape(-1)[5:], second[1]], 0)
    for p, gradient in zip((x, rest), second, strict=True):
        p.grad = gradient
    optimizer.step()
    held = torch.cat([value.detach().reshape(-1) for store in stores for value in store.values])
    torch.testing.assert_close(held, torch.cat([x.detach().reshape(-1), rest.detach()]))


def test_parameters_that_the_servers_do_not_hold_are_left_out() -> None:
    """The user's optimizer may step on others too, with momentum of their own, which no held tensor gets."""
    held, other = [torch.zeros(2) for _ in range(2)], torch.zeros(2)
    optimizer = torch.optim.SGD([*held, other], lr=1.0, momentum=0.5)
    for p, gradient in zip((*held, other), (2.0, 4.0, 8.0), strict=True):
        p.grad = torch.full((2,), gradient)
    optimizer.step()
    specs = [TensorSpec(name, (2,), torch.float32) for name in "xy"]
    store = Store([Range(i, 0, 2, 0) for i in range(2)], specs, held, optimizer, size=1)
    (group,) = store.optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in store.values]
    store.set([torch.zeros(2)] * 2)
    store.apply([torch.zeros(2)] * 2, 0)
    assert [value.tolist() for value in store.values] == [[-1.0, -1.0], [-2.0, -2.0]]


def test_a_snapshot_of_a_read_is_redeemed_by_its_version_and_forgotten_with_its_reader() -> None:
    store, made = store_of(torch.optim.SGD, lr=0.5), []

    def snapshot() -> read_snapshots.Snapshot:
        made.append(store.values[0].detach().clone())
        return [made[-1]]

    read_snapshots.issue_first(store, snapshot)
    assert len(made) == 1, "workers that read one version share one snapshot"
    store.add([torch.ones(3)])
    for worker in (0, 1):
        read_snapshots.issue(store, worker, snapshot)
    assert len(made) == 2
    for worker in (0, 1):
        assert read_snapshots.redeem(store, worker, 0) == [made[0]]
    assert read_snapshots.redeem(store, 0, 1) == [made[1]] and read_snapshots.redeem(store, 0, 0) is None
    read_snapshots.forget(store, 1)
    assert read_snapshots.redeem(store, 1, 0) is None and read_snapshots.redeem(store, 1, 1) is None
    assert read_snapshots.redeem(store, 0, 1) == [made[1]], "the other reader's stays"
