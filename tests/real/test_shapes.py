"""All four shapes of a strategy run: sentences, tiers over a mesh, maps over parameters, phases over time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import laconic
from laconic.network.network_tree import Level, Network
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind
from tests import toys
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import batch, mlp, plain_step


def train(
    member: PoolRank, strategy: str, steps: int = 12, double: bool = True, mesh: Any = None, **options: Any
) -> Any:
    """Parameters after some steps, and the payload bytes of each step."""
    toys.register()
    torch.manual_seed(5)
    model = mlp().double() if double else mlp()
    where = {"mesh": mesh, "process_group": None if mesh is not None else member.process_group}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = laconic.distribute(model, optimizer, strategy, **where, **options)
    ledger, sent = optimizer.session.worker.ledger, []
    for step in range(steps):
        before = ledger.sent_bytes(Kind.PAYLOAD)
        x, y = batch(member.rank, step)
        loss = F.cross_entropy(model(x.double() if double else x), y)
        loss.backward()
        laconic.log(loss=2.0 - step / 10)
        optimizer.step()
        optimizer.zero_grad()
        sent.append(ledger.sent_bytes(Kind.PAYLOAD) - before)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sent, str(optimizer.session.strategy)


def versus(member: PoolRank, strategy: str, rival: str, **options: Any) -> tuple[float, list[float], list[float]]:
    ours, sent, _ = train(member, strategy, **options)
    theirs, sent_by_rival, _ = train(member, rival, **options)
    return float((ours - theirs).abs().max()), sent, sent_by_rival


def in_tiers(member: PoolRank, strategy: str, explicit: bool) -> float:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node")) if explicit else None
    if mesh is None:
        tiered = train_world(member, strategy)
    else:
        tiered, _, _ = train(member, strategy, mesh=mesh)
    flat, _, _ = train(member, "bsp")
    return float((tiered - flat).abs().max())


def train_world(member: PoolRank, strategy: str) -> torch.Tensor:
    torch.manual_seed(5)
    model = mlp().double()
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.05), strategy)
    for step in range(12):
        x, y = batch(member.rank, step)
        F.cross_entropy(model(x.double()), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "strategy", ["[bsp]@node > [bsp]@site", "[bsp / allreduce(rank) / sequential]@node > [bsp]@site"]
)
def test_averaging_in_two_tiers_is_averaging(pool: Pool, strategy: str) -> None:
    assert max(pool.run(in_tiers, strategy, True, workers=4)) < 1e-12


def outer_compressed(member: PoolRank, strategy: str) -> tuple[list[float], float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node"))
    ours, sent, _ = train(member, strategy, steps=6, double=False, mesh=mesh)
    plain, _, _ = train(member, "bsp", steps=6, double=False)
    return sent, float((ours - plain).abs().max())


def test_each_tier_compresses_its_own_way(pool: Pool) -> None:
    """Inside a node nothing is lost; between sites only half the bytes are sent, and only of matrices."""
    model = mlp()
    elements = sum(p.numel() for p in model.parameters())
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    found = pool.run(outer_compressed, "[bsp]@node > [fp16]@site", workers=4)
    for half in (found[:2], found[2:]):  # the members of a node share what crosses
        assert [a + b for a, b in zip(half[0][0], half[1][0], strict=True)] == [2 * 4 * elements + 2 * elements] * 6
        assert all(0 < apart < 1e-2 for _, apart in half)
    for sent, apart in pool.run(outer_compressed, "[fp16]@node > [toy_power(32)+ef]@site", workers=4):
        factors = sum(4 * min(p.shape) * sum(p.shape) for p in model.parameters() if p.dim() == 2)
        assert sent == pytest.approx([2 * elements + factors + 4 * (elements - matrices)] * 6) and apart < 1e-2


def shards_across(member: PoolRank, strategy: str) -> tuple[torch.Tensor, list[float]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node"))
    values, sent, _ = train(member, strategy, steps=4, double=False, mesh=mesh)
    return values, sent


@pytest.mark.parametrize(
    "strategy",
    [
        "[bsp]@node > [bsp]@site",
        "[fp16]@node > [scaled_sign+ef]@site",
        "[bsp / allreduce(rank)]@node > [topk(0.1)+ef]@site",
        "[bsp]@node > [int8+two_hop]@site",
    ],
)
def test_both_engines_take_the_same_shards_across(pool: Pool, strategy: str) -> None:
    """Every member of two nodes of two ends with the same bits on processes and on virtual workers, and sends as much:
    members of a node share what crosses."""

    def alone() -> tuple[torch.Tensor, list[float]]:
        values, sent, _ = train(PoolRank(laconic.rank(), 4, None), strategy, 4, double=False)
        return values, sent

    network = Network(4, (Level(1, 1e9), Level(2, 1e8)))
    virtual = laconic.simulate(alone, 4, network).results
    for (a, sent), (b, sent_there) in zip(pool.run(shards_across, strategy, workers=4), virtual, strict=True):
        assert torch.equal(a, b) and torch.equal(a, virtual[0][0])
        assert sent == pytest.approx(sent_there)


def test_tiers_without_a_mesh_follow_the_machines(pool: Pool) -> None:
    assert max(pool.run(in_tiers, "[bsp]@node > [bsp]@site", False, workers=4)) < 1e-12
    assert max(pool.run(in_tiers, "[bsp]@everyone", False, workers=4)) < 1e-12


def inner_bsp_outer_local(member: PoolRank) -> tuple[list[float], float]:
    """The outer tier communicates every fourth step only; inside a node replicas stay equal always."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node"))
    values, sent, _ = train(member, "[bsp]@node > [toy_local(4)]@site", steps=6, mesh=mesh)
    rows = [torch.empty_like(values) for _ in range(4)]
    torch.distributed.all_gather(rows, values)
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[2], rows[3])
    return sent, float((rows[0] - rows[2]).abs().max())


def test_hierarchical_local_steps(pool: Pool) -> None:
    for sent, apart in pool.run(inner_bsp_outer_local, workers=4):
        assert apart > 0
        inner = sent[0]
        assert sent == pytest.approx([inner, inner, inner, 2 * inner, inner, inner])  # parts of bytes add up


def test_a_map_of_equal_sentences_is_the_sentence(pool: Pool) -> None:
    text = '{matrix: bsp / sequential, "4.*": bsp / wfbp(0), numel>=20: bsp, else: bsp / allreduce(rank)}'
    for apart, sent, by_rival in pool.run(versus, text, "bsp", workers=2):
        assert apart == 0.0 and sent == by_rival


def test_a_map_compresses_what_it_says(pool: Pool) -> None:
    model = mlp()
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    rest = sum(p.numel() for p in model.parameters()) - matrices
    for _, sent, _ in pool.run(versus, "{matrix: cast_fp16, else: none}", "bsp", workers=2):
        assert sent == [2 * matrices + 8 * rest] * 12


def test_phases_turn_at_their_step(pool: Pool) -> None:
    for _, sent, dense in pool.run(versus, "bsp until step 5, then cast_fp16", "bsp", workers=2):
        assert sent[:5] == dense[:5] and sent[5:] == [n / 4 for n in dense[5:]]


def test_phases_turn_at_a_metric_of_all_workers(pool: Pool) -> None:
    for _, sent, dense in pool.run(versus, "bsp until loss<1.55, then cast_fp16", "bsp", workers=2):
        assert sent[:6] == dense[:6] and sent[6:] == [n / 4 for n in dense[6:]]


def local_then_bsp(member: PoolRank) -> float:
    values, _, _ = train(member, "toy_local(4) until step 6, then bsp", steps=8)
    rows = [torch.empty_like(values) for _ in range(member.size)]
    torch.distributed.all_gather(rows, values, group=member.process_group)
    return max(float((rows[0] - row).abs().max()) for row in rows)


def test_leaving_local_steps_brings_replicas_together(pool: Pool) -> None:
    assert max(pool.run(local_then_bsp, workers=3)) == 0.0


def test_only_the_phase_at_work_can_end(pool: Pool) -> None:
    """`loss>0.5` holds from the first step on, and must not end a phase that has not begun."""
    text = "bsp until loss<1.75, then cast_fp16 until loss>0.5, then bsp / sequential"
    for _, sent, dense in pool.run(versus, text, "bsp", workers=2):
        ratios = [a / b for a, b in zip(sent, dense, strict=True)]
        assert ratios == pytest.approx([1, 1, 1, 1, 0.25, 1, 1, 1, 1, 1, 1, 1])


def test_post_local_is_a_phase(pool: Pool) -> None:
    for _, sent, _ in pool.run(versus, "bsp until step 4, then toy_local(4)", "bsp", workers=2):
        assert [n > 0 for n in sent] == [True] * 4 + [False, False, False, True] * 2


# ------------------------------------------------------------------------------------------------ interfaces hold


def test_local_steps_with_period_one_equal_bsp(pool: Pool) -> None:
    for apart, sent, by_bsp in pool.run(versus, "toy_local(1)", "bsp", workers=2):
        assert apart < 1e-12 and sent == pytest.approx(by_bsp)  # differences of a running total


def test_local_steps_save_their_bytes(pool: Pool) -> None:
    for _, sent, by_bsp in pool.run(versus, "toy_local(4)", "bsp", workers=4):
        assert sum(sent) * 4 == pytest.approx(sum(by_bsp))


def two_rounds(member: PoolRank, rank: int) -> tuple[list[float], int]:
    model = mlp()
    promised = sum(
        4 * min(rank, *p.shape) * sum(p.shape) if p.dim() == 2 else 4 * p.numel() for p in model.parameters()
    )
    _, sent, _ = train(member, f"bsp / toy_power({rank})+ef / wfbp(1KiB)", double=False)
    return sent, promised


def test_several_dependent_rounds_and_their_bytes(pool: Pool) -> None:
    for sent, promised in pool.run(two_rounds, 2, workers=2):
        assert sent == [promised] * 12


def full_rank_is_exact(member: PoolRank) -> float:
    return versus(member, "toy_power(32)", "bsp")[0]


def test_full_rank_factors_are_exact(pool: Pool) -> None:
    assert max(pool.run(full_rank_is_exact, workers=2)) < 1e-6


def keeps_everything(member: PoolRank) -> float:
    return versus(member, "toy_topk(1)", "bsp")[0]


def test_ragged_payloads_meet(pool: Pool) -> None:
    assert max(pool.run(keeps_everything, workers=3)) < 1e-12


def remembers(member: PoolRank) -> float:
    """Telescoping: all that was sent plus the last memory is all that was meant."""
    toys.register()
    model = nn.Linear(12, 5).double()
    model, optimizer = laconic.distribute(
        model, torch.optim.SGD(model.parameters(), lr=1.0), "toy_topk(0.05)+ef", process_group=member.process_group
    )
    start = model.weight.detach().clone()
    meant = torch.zeros_like(start)
    for step in range(6):
        draw = torch.Generator().manual_seed(100 * member.rank + step)
        target = torch.randn(5, 12, generator=draw, dtype=torch.float64)
        (model.weight * target).sum().backward()
        meant += target
        optimizer.step()
        optimizer.zero_grad()
    error = optimizer.session.partitions[0].tiers[0].memory["weight"]["error"]
    total = torch.stack([meant, error])
    torch.distributed.all_reduce(total, group=member.process_group)
    decoded = start - model.weight.detach()
    return float((decoded - (total[0] - total[1]) / member.size).abs().max())


@pytest.mark.technique("error_feedback", check=1)
def test_error_feedback_telescopes(pool: Pool) -> None:
    assert max(pool.run(remembers, workers=3)) < 1e-12


def sees_its_parameters(member: PoolRank) -> int:
    from dataclasses import dataclass

    from laconic import registry
    from laconic.sync.base import State, Sync, SyncContext

    with registry.temporary():

        @registry.technique("toy_anchor", paper="a test's own")
        @dataclass(frozen=True)
        class ToyAnchor(Sync):
            """Keeps a copy of the model, as outer optimizers do."""

            def init(self, section: SyncContext) -> State:
                return {str(k): p.detach().clone() for k, p in enumerate(section.parameters)}

            def averages_gradients(self, step: int) -> bool:
                return True

        model = mlp()
        model, optimizer = laconic.distribute(
            model, sgd(model.parameters()), "toy_anchor", process_group=member.process_group
        )
        return len(optimizer.session.partitions[0].tiers[0].sync_state)


def test_a_rule_sees_its_parameters_from_the_start(pool: Pool) -> None:
    assert pool.run(sees_its_parameters) == [6, 6]


def unnamed_dimension(member: PoolRank) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node"))
    with pytest.raises(laconic.StrategyError) as refused:
        train(member, "[bsp]@site", mesh=mesh)
    with pytest.raises(laconic.StrategyError, match="would do nothing"):
        train(member, "[bsp]@node > [bsp / sequential]@site", mesh=mesh)
    return str(refused.value)


def test_a_mesh_dimension_without_a_tier_is_refused(pool: Pool) -> None:
    for message in pool.run(unnamed_dimension, workers=4):
        assert "no tier spans the mesh's node" in message


def test_a_plans_own_order_is_kept() -> None:
    from laconic.runtime.buckets import PlannedPartition
    from laconic.runtime.comm_planner import in_order
    from laconic.values.comm_plan import CommPlan, whole

    def alone(count: int) -> CommPlan:
        specs = tuple(TensorSpec("x", (1,), torch.float32) for _ in range(count))
        buckets = tuple((i,) for i in range(count))
        return CommPlan(specs, buckets, whole(buckets, specs, range(count)))

    parts = [PlannedPartition(alone(3), [0, 1, 2], []), PlannedPartition(alone(2), [4, 3], [])]
    assert [m for _, m in in_order(parts[:1], arrival=[2, 1, 0])] == list(parts[0].plan.messages)
    merged = in_order(parts, arrival=[4, 0, 3, 1, 2])
    assert [parts[which].members[m.bucket] for which, m in merged] == [4, 0, 3, 1, 2]


def learns_the_order(member: PoolRank) -> list[int]:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(16, 5), nn.Linear(12, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return self.last(torch.tanh(self.first(x)))

    model = Backwards()
    model, optimizer = laconic.distribute(
        model, sgd(model.parameters()), "bsp / wfbp(0)", process_group=member.process_group
    )
    for step in range(2):
        plain_step(model, optimizer, member.rank, step)
    return [piece.carried[0] for piece in optimizer.session.reducer.messages]


def test_messages_follow_the_order_of_arrival(pool: Pool) -> None:
    for order in pool.run(learns_the_order):
        assert sorted(order[:2]) == [0, 1] and sorted(order[2:]) == [2, 3], "the last layer's gradients come first"
