"""Rules between replicas of shards: each replica trains by itself, and its shards meet the others' by the rule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from tests.sharded.references import whole_of
from tests.sharded.training import batch, blocks, sharded, steps_of, whole_parameters

STEPS = 9


def of_replica(replica: int, step: int) -> tuple[Tensor, Tensor]:
    """The batch of a replica of two workers: those of its workers, one behind the other."""
    parts = [batch(2 * replica + rank, step) for rank in range(2)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def in_shards(rule: str) -> list[list[Tensor]]:
    """Train two replicas of two shards, and return a worker's whole parameters after every step."""
    mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = sharded(mesh["shard"])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, f"[none]@shard > [{rule}]@replica", mesh)
    group = optimizer.session.worker.adopt(mesh.get_group("shard"))  # type: ignore[attr-defined]
    found = []
    for step in range(STEPS):
        x, y = batch(laconic.rank(), step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(whole_parameters(model, lambda x: group.all_gather(x, control=1.0).wait()))
    return found


def in_one_piece(rule: str) -> list[list[Tensor]]:
    """Train with a worker in the place of each replica."""
    model: Any = blocks()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, rule)
    found = []
    for step in range(STEPS):
        x, y = of_replica(laconic.rank(), step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append([p.detach().clone() for p in model.parameters()])
    return found


def equal(one: list[Tensor], other: list[Tensor], tolerance: float = 0.0) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("rule", "period"),
    [
        ("local(4)", 4),
        ("diloco(4)", 4),
        ("local(3) / int8(64)+ef", 3),
        ("streaming_diloco(4, fragments=2, overlap=1)", 0),
    ],
)
def test_replicas_of_shards_learn_what_whole_workers_learn(rule: str, period: int) -> None:
    """Nine steps, which are several periods and a part of one; after every step the parameters are those of whole
    workers that have the batch of a replica, whose replicas are equal after a period and differ between."""
    here, there = (
        laconic.simulate(lambda: in_shards(rule), 4).results,
        laconic.simulate(lambda: in_one_piece(rule), 2).results,
    )
    tolerance = 1e-5 if "int8" not in rule else 0.02  # blocks of the codec lie elsewhere in shards
    for step in range(STEPS):
        for rank in range(4):
            assert equal(here[rank][step], there[rank // 2][step], tolerance), f"{rule}, worker {rank}, step {step}"
        assert equal(here[0][step], here[1][step]), "workers of one replica see the same whole"
        if period:
            assert equal(here[0][step], here[2][step]) == ((step + 1) % period == 0)


def test_what_replicas_send_follows_the_period() -> None:
    def sent(rule: str) -> float:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh["shard"])
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, f"[none]@shard > [{rule}]@replica", mesh)
        worker = optimizer.session.worker  # type: ignore[attr-defined]
        marks = []
        for step in range(9):
            marks.append(worker.ledger.sent_bytes())
            x, y = batch(laconic.rank(), step)
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        steps = [after - before for before, after in pairwise(marks)]
        return max(steps) - min(steps) if len(set(steps)) > 1 else 0.0

    numel = sum(p.numel() for p in blocks().parameters())
    outer = laconic.simulate(lambda: sent("diloco(4)"), 4).results[0]
    assert outer == pytest.approx(4 * numel / 2, rel=0.05), "the shard of a worker, in an all-reduce of two"


@pytest.mark.parametrize(
    ("strategy", "written_out", "weights"),
    [
        ("int8(64)+ef", "[int8(64)+ef]@shard > [bsp]@replica", None),
        pytest.param("zero_plus_plus", "[int4(128)]@shard > [bsp]@replica", "int8(256)", marks=pytest.mark.long),
    ],
)
def test_replicas_of_which_nothing_is_said_average_in_every_step(
    strategy: str, written_out: str, weights: str | None
) -> None:
    """Sharded on a mesh of two dimensions, as PyTorch's HSDP is: with the mesh or without it, and with a tier or
    without one, the bits are the same."""

    def job(strategy: str, weights: str | None, given: bool) -> list[Tensor]:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = laconic.distribute(model, optimizer, strategy, mesh if given else None, weights=weights)
        steps_of(model, optimizer, 3, laconic.rank())
        return whole_of(model)

    expected = laconic.simulate(lambda: job(written_out, weights, True), 4).results[0]
    for given in (False, True):
        for found in laconic.simulate(lambda given=given: job(strategy, None, given), 4).results:  # type: ignore[misc]
            assert equal(found, expected)
