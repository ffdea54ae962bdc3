"""Sharded trainings are saved shard by shard and go on, with as many workers or with others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.errors import ContractError
from laconic.parallel.fsdp.mesh import sharded_modules
from laconic.runtime.sharded.error_memory import gathered, spread
from tests.cases import first_of
from tests.sharded.references import whole_of
from tests.sharded.training import sharded, steps_of

FOUR = "strided_bits(4, 128)"
HOPS = f"[{FOUR}+ef]@inside > [{FOUR}+ef]@across"
AROUND = f"[int8(128)]@inside > [{FOUR}+ef]@across"  # only what crosses is remembered


def began(strategy: str, weights: str | None = None, hosts: int = 1, lr: float = 1e-2) -> tuple[Any, Any]:
    """A sharded model and its optimizer; over several hosts in two tiers."""
    size = laconic.size()
    mesh = laconic.init_device_mesh("cpu", (hosts, size // hosts), mesh_dim_names=("across", "inside"))
    model = sharded(mesh["inside"] if hosts == 1 else mesh._flatten("all"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    if hosts == 1:
        return laconic.distribute(model, optimizer, strategy, weights=weights)
    return laconic.distribute(model, optimizer, strategy, mesh, weights=weights)


def remembered(optimizer: Any) -> dict[str, list[Tensor]]:
    """What this worker's memories stand for, of each whole tensor of each module."""
    sockets = optimizer.session.sockets
    state, found = sockets.state_dict(), {}
    for module in sharded_modules(optimizer.session.model):
        parts = [
            spread(memory[name]["error"], state["sizes"], hop, state["rank"])
            for hop, memory in enumerate(state["memory"])
            if "error" in memory.get(name := f"{module}@{hop}" if hop else module, {})
        ]
        if parts:
            layout = sockets._used[module].layout(module, math.prod(state["sizes"]))
            found[module] = layout.whole(torch.stack(parts).sum(0))
    return found


def summed(states: list[dict[str, list[Tensor]]]) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for module in {name for state in states for name in state}:
        rows = zip(*(state[module] for state in states if module in state), strict=True)
        found[module] = [torch.stack(row).sum(0) for row in rows]
    return found


@pytest.mark.parametrize(
    ("strategy", "weights"), first_of([("sdp4bit", None), (f"{FOUR}+ef", "int8(256)"), (f"{FOUR}+loco", None)], 1)
)
def test_as_many_workers_go_on_bit_by_bit(tmp_path: Path, strategy: str, weights: str | None) -> None:
    """Weights that are sent as differences need the copy that all have, and gradients their memory."""

    def through() -> list[Tensor]:
        model, optimizer = began(strategy, weights)
        steps_of(model, optimizer, 3, laconic.rank())
        laconic.checkpoint(tmp_path, model, optimizer)
        steps_of(model, optimizer, 3, 7 + laconic.rank())
        return whole_of(model)

    def again() -> list[Tensor]:
        model, optimizer = began(strategy, weights, lr=1.0)
        laconic.resume(tmp_path, model, optimizer)
        steps_of(model, optimizer, 3, 7 + laconic.rank())
        return whole_of(model)

    expected = laconic.simulate(through, 3).results
    for ours, theirs in zip(laconic.simulate(again, 3).results, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("strategy", "hosts", "before", "after"),
    first_of(
        [
            (HOPS, 2, 4, 2),
            (f"{FOUR}+ef", 1, 3, 2),
            (f"{FOUR}+ef", 1, 4, 2),
            (f"{FOUR}+ef", 1, 2, 4),
            (HOPS, 2, 2, 4),
            (AROUND, 2, 4, 2),
            (AROUND, 2, 2, 4),
        ],
        1,
    ),
)
def test_another_number_of_workers_goes_on_with_the_same_sum_of_memories(
    tmp_path: Path, strategy: str, hosts: int, before: int, after: int
) -> None:
    def first() -> tuple[list[Tensor], dict[str, list[Tensor]]]:
        model, optimizer = began(strategy, "int8(256)", hosts)
        steps_of(model, optimizer, 3, laconic.rank())
        laconic.checkpoint(tmp_path, model, optimizer, epoch=2)
        return whole_of(model), remembered(optimizer)

    def then() -> tuple[list[Tensor], dict[str, list[Tensor]], list[float], Any]:
        model, optimizer = began(strategy, "int8(256)", hosts, lr=1.0)
        extra = laconic.resume(tmp_path, model, optimizer)
        memory, weights = remembered(optimizer), whole_of(model)
        assert optimizer.session.steps == 3 and optimizer.param_groups[0]["lr"] == 1e-2
        return weights, memory, steps_of(model, optimizer, 2, laconic.rank()), extra

    saved, found = laconic.simulate(first, before).results, laconic.simulate(then, after).results
    kept = summed([memory for _, memory in saved])
    assert kept and all(float(x.abs().max()) > 0 for tensors in kept.values() for x in tensors)
    now = summed([memory for _, memory, _, _ in found])
    assert kept.keys() == now.keys()
    for module, tensors in kept.items():
        for ours, theirs in zip(now[module], tensors, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    for weights, _, losses, extra in found:
        assert all(torch.equal(a, b) for a, b in zip(weights, saved[0][0], strict=True))
        assert extra == {"epoch": 2} and all(math.isfinite(loss) for loss in losses)


def replicated(rule: str, lr: float = 1e-2) -> tuple[Any, Any]:
    """Two replicas of two shards each."""
    mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = sharded(mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return laconic.distribute(model, optimizer, f"[{FOUR}+ef]@shard > [{rule}]@replica", mesh)


@pytest.mark.long
def test_shards_that_become_replicas_keep_the_sum_too(tmp_path: Path) -> None:
    """As many workers, in another arrangement."""

    def first() -> dict[str, list[Tensor]]:
        model, optimizer = began(f"{FOUR}+ef")
        steps_of(model, optimizer, 2, laconic.rank())
        laconic.checkpoint(tmp_path, model, optimizer)
        return remembered(optimizer)

    def then() -> dict[str, list[Tensor]]:
        model, optimizer = replicated("bsp")
        laconic.resume(tmp_path, model, optimizer)
        memory = remembered(optimizer)
        steps_of(model, optimizer, 1, laconic.rank())
        return memory

    kept = summed(laconic.simulate(first, 4).results)
    now = summed(laconic.simulate(then, 4).results)
    for module, tensors in kept.items():
        for ours, theirs in zip(now[module], tensors, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_replicas_that_differ_go_on_each_or_from_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def first() -> list[Tensor]:
        model, optimizer = replicated("local(8)")
        steps_of(model, optimizer, 2, laconic.rank())
        laconic.checkpoint(tmp_path, model, optimizer)
        return whole_of(model)

    def then(rule: str) -> list[Tensor]:
        model, optimizer = replicated(rule, lr=1.0)
        laconic.resume(tmp_path, model, optimizer)
        assert optimizer.session.steps == 2 and optimizer.param_groups[0]["lr"] == 1e-2
        return whole_of(model)

    saved = laconic.simulate(first, 4).results
    assert not torch.equal(saved[0][0], saved[2][0])
    for ours, theirs in zip(laconic.simulate(lambda: then("local(8)"), 4).results, saved, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for ours in laconic.simulate(lambda: then("bsp"), 4).results:
        for found, one, other in zip(ours, saved[0], saved[2], strict=True):
            torch.testing.assert_close(found, (one + other) / 2)
    assert "the mean of the workers' models goes on" in capsys.readouterr().err

    def fewer() -> None:
        model, optimizer = began(f"{FOUR}+ef")
        laconic.resume(tmp_path, model, optimizer)  # other words between replicas: theirs are taken over
        model, optimizer = laconic.undistribute(model, optimizer)

    laconic.simulate(fewer, 2)


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 2, 2)])
def test_what_is_spread_is_gathered_again(sizes: tuple[int, ...]) -> None:
    """Each owner's places of a hop hold what it left out there, as often as its host has members."""
    total, chunk = math.prod(sizes), 5
    flat = torch.randn(total * chunk, generator=torch.Generator().manual_seed(1))
    for hop in range(len(sizes)):
        inside = math.prod(sizes[:hop])
        parts = [spread(gathered(flat, sizes, hop, rank), sizes, hop, rank) for rank in range(inside)]
        torch.testing.assert_close(torch.stack(parts).sum(0), flat)


def test_memory_of_other_words_is_dropped_with_a_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def first() -> None:
        model, optimizer = began(f"{FOUR}+ef", "int8(256)")
        steps_of(model, optimizer, 2, laconic.rank())
        laconic.checkpoint(tmp_path, model, optimizer)

    def then() -> dict[str, list[Tensor]]:
        model, optimizer = began("scaled_sign+ef", "int8(256)")
        laconic.resume(tmp_path, model, optimizer)
        memory = remembered(optimizer)
        steps_of(model, optimizer, 1, laconic.rank())
        return memory

    laconic.simulate(first, 2)
    for workers in (2, 3):
        capsys.readouterr()
        assert laconic.simulate(then, workers).results == [{}] * workers
        said = capsys.readouterr().err
        assert said.count("that memory is dropped") == 1 and "strided_bits" in said and "scaled_sign" in said


def test_a_checkpoint_of_another_model_is_refused_on_every_worker(tmp_path: Path) -> None:
    def first() -> None:
        model, optimizer = began("none")
        laconic.checkpoint(tmp_path, model, optimizer)

    def other() -> None:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        model = torch.distributed.fsdp.fully_shard(torch.nn.Linear(3, 4), mesh=mesh)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "none")
        with pytest.raises(ContractError, match="another sharded model"):
            laconic.resume(tmp_path, model, optimizer)

    laconic.simulate(first, 2)
    laconic.simulate(other, 2)


def test_a_training_state_of_whole_models_is_refused() -> None:
    def job() -> None:
        with pytest.raises(ContractError, match=r"sharded: save it with laconic\.checkpoint"):
            laconic.TrainingState(*began("none"))

    laconic.simulate(job, 2)
