"""`laconic.fsdp_hooks` codes what existing FSDP2 code sends, averages replicas, and goes away without a trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.parallel.fsdp.mesh import parameter_group, sharded_modules
from laconic.worker import Kind
from tests.cases import first_of
from tests.sharded.references import whole_of
from tests.sharded.training import blocks, sharded, steps_of

FOUR = "strided_bits(4, 128)"


def began(native: bool) -> tuple[Any, Any, Any]:
    """Two replicas of two shards, on a mesh of two dimensions or on its inner one."""
    mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = sharded(mesh if native else mesh["shard"])
    return mesh, model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def distributed(native: bool, strategy: str) -> list[Tensor]:
    mesh, model, optimizer = began(native)
    model, optimizer = laconic.distribute(model, optimizer, strategy, mesh)
    steps_of(model, optimizer, 3, laconic.rank())
    return whole_of(model)


def hooked(native: bool, replicas: str) -> list[Tensor]:
    mesh, model, optimizer = began(native)
    laconic.fsdp_hooks(model, f"{FOUR}+loco", replicas=replicas, mesh=mesh)
    steps_of(model, optimizer, 3, laconic.rank())
    return whole_of(model)


@pytest.mark.parametrize("native", first_of([True, False], 1))
def test_hooks_average_over_replicas_as_distribute_does(native: bool) -> None:
    expected = laconic.simulate(lambda: distributed(native, f"[{FOUR}+loco]@shard > [bsp]@replica"), 4).results[0]
    for found in laconic.simulate(lambda: hooked(native, "none"), 4).results:
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("way", ["hooks", "distribute"])
def test_what_was_put_into_a_model_is_taken_out_again(native: bool, way: str) -> None:
    def inside(model: Any) -> list[Any]:
        found: list[Any] = []
        for module in sharded_modules(model).values():
            group = parameter_group(module)
            found += [group.mesh_info, group._all_reduce_hook, group._reduce_scatter_comm, group._all_gather_comm]
            found += [p.mesh_info for p in group.fsdp_params]
            found += [len(module._forward_pre_hooks), len(module._forward_hooks)]
            hooks = [p.sharded_param._post_accumulate_grad_hooks or {} for p in group.fsdp_params]
            found += [len(hook) for hook in hooks]
            gathered = [getattr(p, "_unsharded_param", p.sharded_param) for p in group.fsdp_params]
            found += [len(p._post_accumulate_grad_hooks or {}) for p in gathered]
        return found

    def job() -> None:
        mesh, model, optimizer = began(native)
        ours = lambda grad: None  # noqa: E731
        model.set_all_reduce_hook(ours)
        before = inside(model)
        if way == "hooks":
            hooks = laconic.fsdp_hooks(model, f"{FOUR}+ef", replicas="int8(64)+ef", mesh=mesh)
            steps_of(model, optimizer, 1, laconic.rank())
            hooks.remove()
        else:
            model, optimizer = laconic.distribute(model, optimizer, f"[{FOUR}+ef]@shard > [int8(64)+ef]@replica", mesh)
            steps_of(model, optimizer, 1, laconic.rank())
            laconic.undistribute(model, optimizer)
        assert inside(model) == before

    laconic.simulate(job, 4)


def test_modules_that_were_sharded_in_one_call_get_their_own_messages_back() -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        model = blocks()
        fully_shard([model[0], model[1]], mesh=mesh)
        fully_shard(model, mesh=mesh)
        groups = [parameter_group(module) for module in (model[0], model[1], model)]
        before = [(group._reduce_scatter_comm, group._all_gather_comm) for group in groups]
        laconic.fsdp_hooks(model, FOUR).remove()
        assert [(group._reduce_scatter_comm, group._all_gather_comm) for group in groups] == before

    laconic.simulate(job, 2)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.long
def test_hooks_go_on_from_what_they_remembered(native: bool) -> None:
    """Memory of shards and of replicas is in `state_dict`: without it another model follows."""

    def job(way: str) -> list[Tensor]:
        mesh, model, optimizer = began(native)
        how: dict[str, Any] = {"weights": "int8(256)", "replicas": "scaled_sign+ef", "mesh": mesh}
        hooks = laconic.fsdp_hooks(model, f"{FOUR}+ef", **how)
        steps_of(model, optimizer, 2, laconic.rank())
        if way != "straight on":
            state = copy.deepcopy(hooks.state_dict())
            hooks.remove()
            hooks = laconic.fsdp_hooks(model, f"{FOUR}+ef", **how)
            if way == "without replicas' memory":
                state["replicas"][2].clear()
            hooks.load_state_dict(state)
        steps_of(model, optimizer, 2, 9 + laconic.rank())
        return whole_of(model)

    ways = ("straight on", "again", "without replicas' memory")
    straight, again, forgotten = (laconic.simulate(lambda w=w: job(w), 4).results for w in ways)
    for a, b, c in zip(straight, again, forgotten, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        assert not all(torch.equal(x, y) for x, y in zip(a, c, strict=True))


def test_replicas_are_averaged_in_fewer_bytes() -> None:
    def sent(replicas: str) -> float:
        mesh, model, optimizer = began(False)
        worker = laconic.fsdp_hooks(model, "none", replicas=replicas, mesh=mesh)._worker
        steps_of(model, optimizer, 1, laconic.rank())
        return float(worker.ledger.sent_bytes(Kind.PAYLOAD))

    dense, short = (laconic.simulate(lambda r=r: sent(r), 4).results[0] for r in ("none", "bf16"))
    shards = sum(-(-p.shape[0] // 2) * p[0].numel() for p in blocks().parameters())
    assert dense - short == 2 * shards  # an all-reduce over two sends the whole once, in half the bytes


@pytest.mark.parametrize(
    ("method", "gradients", "weights"),
    [("zero_plus_plus", "int4(128)", "int8(256)"), ("sdp4bit", "int4(128)+hadamard(32)", "int4(128)+ef21")],
)
def test_hooks_take_a_method_by_name(method: str, gradients: str, weights: str) -> None:
    def job(gradients: str, weights: str | None) -> list[Tensor]:
        _, model, optimizer = began(False)
        laconic.fsdp_hooks(model, gradients, weights=weights)
        steps_of(model, optimizer, 2, laconic.rank())
        return whole_of(model)

    named, written = (
        laconic.simulate(lambda given=given: job(*given), 4).results[0]  # type: ignore[misc]
        for given in ((method, None), (gradients, weights))
    )
    assert all(torch.equal(a, b) for a, b in zip(named, written, strict=True))
