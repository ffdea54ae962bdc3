"""What a sharded model cannot do is refused before the first step, in a sentence that says what to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.errors import ContractError, LaconicError, StrategyError
from tests.sharded.training import blocks, sharded, steps_of

REFUSED: dict[str, tuple[str, str | None, str]] = {
    "messages of unknown length": ("hard_threshold", None, "depends on the values"),
    "messages that nobody decodes alone": ("powersgd(2)", None, "an owner could decode alone"),
    "differences from what all received": ("scaled_sign+ef21", None, "receive a part each"),
    "four bits of weights": ("none", "strided_bits(4, 128)", r"\+ef21 for differences"),
    "ragged weights": ("none", "hard_threshold", "known length"),
    "rules in the place of weights": ("none", "local(8)", "not as `local"),
    "a server": ("ssp(3)", None, "no parameter server"),
    "a map": ("{matrix: int8(64), else: none}", None, "without names and phases"),
    "phases": ("none until step 3, then int8(64)", None, "without names and phases"),
    "local steps among shards": ("local(4)", None, "scattered in every backward pass"),
}


def refused(strategy: str, weights: str | None, match: str) -> None:
    mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    model: Any = sharded(mesh)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with pytest.raises(StrategyError, match=match) as raised:
        laconic.distribute(model, optimizer, strategy, weights=weights)
    assert isinstance(raised.value, LaconicError)
    model, optimizer = laconic.distribute(model, optimizer, "none")  # nothing of the first is left
    steps_of(model, optimizer, 1, laconic.rank())


@pytest.mark.parametrize("what", REFUSED)
def test_what_shards_cannot_do_is_refused_with_the_way_out(what: str) -> None:
    laconic.simulate(lambda: refused(*REFUSED[what]), 2)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        ("one_bit_adam", "remembers of each parameter"),
        ("osp / none / allreduce", "remembers of each parameter"),
        ("local(4, momentum=reset)", "remembers of each parameter"),
        ("local(4, momentum=average)", "remembers of each parameter"),
        ("slowmo(buffers=reset)", "remembers of each parameter"),
        ("jointspar", "has a part of each"),
    ],
)
def test_rules_between_replicas_that_need_whole_tensors_are_refused(rule: str, match: str) -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with pytest.raises(StrategyError, match=match):
            laconic.distribute(model, optimizer, f"[none]@shard > [{rule}]@replica", mesh)

    laconic.simulate(job, 4)


def test_a_server_between_replicas_is_refused() -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with pytest.raises(LaconicError, match="server"):
            laconic.distribute(model, optimizer, "[none]@shard > [ssp(3)]@replica", mesh)

    laconic.simulate(job, 4)


def test_a_second_distribute_is_refused_until_the_first_is_undone() -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        model: Any = sharded(mesh)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, distributed = laconic.distribute(model, optimizer, "none")
        with pytest.raises(ContractError, match=r"already: call laconic\.undistribute"):
            laconic.distribute(model, optimizer, "none")
        model, optimizer = laconic.undistribute(model, distributed)
        model, optimizer = laconic.distribute(model, optimizer, "int8(64)+ef")
        steps_of(model, optimizer, 1, laconic.rank())

    laconic.simulate(job, 2)


def test_sentences_about_meshes() -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model: Any = sharded(mesh["shard"])
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with pytest.raises(LaconicError, match="no tier spans the mesh's replica"):
            laconic.distribute(model, optimizer, "[none]@shard", mesh)
        with pytest.raises(ContractError, match="give mesh="):
            laconic.fsdp_hooks(model, "none", replicas="none")
        with pytest.raises(StrategyError, match="give it as replicas="):
            laconic.fsdp_hooks(model, "[none]@shard > [none]@replica", mesh=mesh)
        with pytest.raises(ContractError, match=r"laconic\.ddp_hook"):
            laconic.fsdp_hooks(nn.Linear(2, 2))
        several = blocks()
        fully_shard(several[0], mesh=mesh["shard"])
        fully_shard(several, mesh=mesh["replica"])
        with pytest.raises(ContractError, match="shard all of them on one mesh"):
            laconic.distribute(several, torch.optim.AdamW(several.parameters(), lr=1e-2), "none")

    laconic.simulate(job, 4)


@pytest.mark.parametrize("strategy", ["none", "int8(64)", "zero_plus_plus"])
def test_replicas_that_nobody_would_average_are_refused(strategy: str) -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with pytest.raises(StrategyError, match=r"over 2 of 4 workers, .* > \[bsp\]@replica"):
            laconic.distribute(model, optimizer, strategy)

    laconic.simulate(job, 4)


def test_a_method_on_a_mesh_of_three_dimensions_is_refused() -> None:
    def job() -> None:
        mesh = laconic.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("sites", "across", "inside"))
        model = sharded(mesh._flatten("all"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with pytest.raises(StrategyError, match=r"this one has 3: write a tier for each"):
            laconic.distribute(model, optimizer, "zero_plus_plus", mesh)

    laconic.simulate(job, 8)
