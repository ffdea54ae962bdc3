"""What `fully_shard` offers goes on working: each feature gives the parameters of one process with the whole model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import laconic
from laconic.runtime.sharded.error_memory import spread
from laconic.worker import Kind
from tests.cases import first_of
from tests.sharded.features import FEATURES, checkpointed, in_blocks
from tests.sharded.references import alone, assert_alike, assert_mostly_alike, squared, together, whole_of
from tests.sharded.training import batch, blocks

FOUR = "strided_bits(4, 128)"


# ---------------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("feature", first_of(FEATURES))
def test_features_of_fully_shard_give_what_one_process_gives(feature: str) -> None:
    build, shard = FEATURES[feature]
    found = laconic.simulate(lambda: together(build, shard)[0], 4).results
    assert_alike(found, alone(build, 4))


@pytest.mark.parametrize("feature", first_of(FEATURES))
def test_features_train_with_coded_gradients_and_weight_differences(feature: str) -> None:
    """Every worker has the same whole model, which is near the exact one."""
    build, shard = FEATURES[feature]
    found = laconic.simulate(
        lambda: together(build, shard, 3, strategy="int8(64)+ef", weights=f"{FOUR}+ef21")[0], 4
    ).results
    assert_alike(found, found[0], atol=0)
    exact, start = alone(build, 4, 3), [p.detach() for p in build().parameters()]
    moved = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(exact, start, strict=True)))
    apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(exact, found[0], strict=True)))
    assert 0 < apart < 0.2 * moved


def test_weights_are_gathered_once_where_a_copy_is_kept_and_recomputed_blocks_gather_no_more() -> None:
    def sent(build: Callable[[], nn.Module], weights: str, reshard: bool) -> float:
        def shard(model: Any, mesh: Any) -> nn.Module:
            return in_blocks(model, mesh, reshard_after_forward=reshard)

        worker = together(build, shard, 2, strategy=FOUR, weights=weights)[1].session.worker
        return float(worker.ledger.sent_bytes(Kind.PAYLOAD))

    def of(*how: Any) -> float:
        found: float = laconic.simulate(lambda: sent(*how), 2).results[0]
        return found

    copied = f"{FOUR}+ef21"
    assert of(blocks, copied, True) == of(blocks, copied, False) == of(checkpointed, copied, True)
    twice, once = of(blocks, "int8(256)", True), of(blocks, "int8(256)", False)
    assert twice > once and of(checkpointed, "int8(256)", True) == twice


# ---------------------------------------------------------------------------------------------- precision


def in_short(reduce: torch.dtype, ranks: int, steps: int, whole_root: bool) -> list[Tensor]:
    """Computes in bf16 with parameters in float32, and adds gradients in `reduce`, in the order of ranks."""
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = 2 if reduce == torch.float16 else 1  # what is divided before the sum, against overflow
    for step in range(steps):
        total: list[Tensor] = []
        for rank in range(ranks):
            short: Any = copy.deepcopy(model)
            for part in list(short)[:3] if whole_root else [short]:
                part.bfloat16()
            x, y = batch(rank, step)
            inner = nn.Sequential(*list(short)[:3])(x.bfloat16())
            (short[3](inner.float() if whole_root else inner) - y).square().mean().backward()
            own = [p.grad.to(reduce if p.dtype == torch.bfloat16 else p.dtype) / before for p in short.parameters()]
            total = own if rank == 0 else [a + b for a, b in zip(total, own, strict=True)]
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            parameter.grad = (gradient / (ranks // before)).float()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("whole_root", [False, True])
@pytest.mark.parametrize("reduce", first_of([torch.bfloat16, torch.float16, torch.float32], 1))
def test_mixed_precision_computes_and_adds_in_the_types_of_its_policy(reduce: torch.dtype, whole_root: bool) -> None:
    def shard(model: Any, mesh: Any) -> nn.Module:
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce, output_dtype=torch.float32 if whole_root else None)
        for part in list(model)[:3]:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy() if whole_root else policy)

    for ranks in (2, 4):
        found = laconic.simulate(lambda: together(blocks, shard, 3)[0], ranks).results
        assert_mostly_alike(found, in_short(reduce, ranks, 3, whole_root))


@pytest.mark.parametrize("reduce", [torch.bfloat16, torch.float16])
def test_memory_of_short_gradients_is_kept_in_float32(reduce: torch.dtype) -> None:
    """A memory of 16 bits would forget: what is sent and what is remembered would not add up."""

    def job() -> list[torch.dtype]:
        def shard(model: Any, mesh: Any) -> nn.Module:
            return in_blocks(model, mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce))

        sockets = together(blocks, shard, 2, strategy=f"{FOUR}+ef")[1].session.sockets
        return [entry["error"].dtype for entry in sockets.state_dict()["memory"][0].values()]

    for types in laconic.simulate(job, 2).results:
        assert len(types) == 4 and set(types) == {torch.float32}


def test_short_gradients_are_sent_in_their_own_type() -> None:
    def sent(reduce: torch.dtype) -> float:
        def shard(model: Any, mesh: Any) -> nn.Module:
            return in_blocks(model, mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce))

        return float(together(blocks, shard, 1)[1].session.worker.ledger.sent_bytes(Kind.PAYLOAD))

    short, long = (laconic.simulate(lambda r=r: sent(r), 3).results[0] for r in (torch.bfloat16, torch.float32))
    padded = sum(-(-p.shape[0] // 3) * 3 * p[0].numel() for p in blocks().parameters())
    assert long - short == 2 / 3 * 2 * padded


@pytest.mark.parametrize("factor", first_of([3.0, 1.0, 4.0], 1))
def test_gradients_are_divided_by_the_factor_that_is_set(factor: float) -> None:
    def shard(model: Any, mesh: Any) -> nn.Module:
        for module in in_blocks(model, mesh).modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)
        return model  # type: ignore[no-any-return]

    found = laconic.simulate(lambda: together(blocks, shard, 3)[0], 4).results
    assert_alike(found, alone(blocks, 4, 3, scale=4 / factor), atol=4e-6)


# ---------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("order", first_of([2.0, math.inf], 1))
def test_both_ways_of_clipping_see_the_whole_norm(order: float) -> None:
    most = 0.1 if order == 2.0 else 0.01

    def torch_way(model: Any, optimizer: Any) -> float:
        return float(nn.utils.clip_grad_norm_(model.parameters(), most, order).full_tensor())  # type: ignore[attr-defined]

    def own_way(model: Any, optimizer: Any) -> float:
        norm = laconic.clip_grad_norm_(optimizer, most, order)
        assert type(norm) is Tensor
        return float(norm)

    whole = blocks()
    for rank in range(3):
        (squared(whole, rank, 0) / 3).backward()
    expected = float(nn.utils.get_total_norm([p.grad for p in whole.parameters() if p.grad is not None], order))
    for way in (torch_way, own_way):
        norms: list[float] = []

        def job(way: Any = way, norms: list[float] = norms) -> list[Tensor]:
            return together(blocks, in_blocks, 2, before_step=lambda m, o: norms.append(way(m, o)))[0]

        found = laconic.simulate(job, 3).results
        assert norms[:3] == pytest.approx([expected] * 3, rel=1e-5)
        if order == 2.0:
            assert_alike(found, alone(blocks, 3, 2, clip=most))
        else:
            assert_alike(found, found[0], atol=0)


def test_a_norm_is_whole_over_shards_and_equal_over_replicas() -> None:
    def job() -> float:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model: Any = in_blocks(blocks(), mesh["shard"])
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, "[none]@shard > [bsp]@replica", mesh)
        squared(model, laconic.rank(), 0).backward()
        return float(laconic.clip_grad_norm_(optimizer, 1.0))

    whole = blocks()
    for rank in range(4):
        (squared(whole, rank, 0) / 4).backward()
    expected = float(nn.utils.get_total_norm([p.grad for p in whole.parameters() if p.grad is not None]))
    assert laconic.simulate(job, 4).results == pytest.approx([expected] * 4, rel=1e-5)


# ---------------------------------------------------------------------------------------------- accumulation


def by_no_sync(model: Any) -> Any:
    return model.no_sync()


class by_switch:  # used as a function
    """What people write for `fully_shard` today."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.set_requires_gradient_sync(False)

    def __exit__(self, *raised: object) -> None:
        self._model.set_requires_gradient_sync(True)


def in_two_batches(quiet: Any) -> Callable[[nn.Module, int, int], Tensor]:
    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        if quiet is None:
            squared(model, rank, 100 + step).backward()
        else:
            with quiet(model):
                squared(model, rank, 100 + step).backward()
        return squared(model, rank, step)

    return loss


@pytest.mark.parametrize("quiet", first_of([by_no_sync, None, by_switch]))
def test_micro_batches_add_up_with_and_without_messages_between(quiet: Any) -> None:
    def shard(model: Any, mesh: Any) -> nn.Module:
        return in_blocks(model, mesh, reshard_after_forward=True)

    def job() -> tuple[list[Tensor], float]:
        parameters, optimizer = together(blocks, shard, 3, in_two_batches(quiet))
        return parameters, optimizer.session.worker.ledger.sent_bytes(Kind.PAYLOAD)

    found = laconic.simulate(job, 3).results
    both = lambda model, rank, step: squared(model, rank, step) + squared(model, rank, 100 + step)  # noqa: E731
    assert_alike([parameters for parameters, _ in found], alone(blocks, 3, 3, both), atol=3e-6)
    plain = laconic.simulate(lambda: together(blocks, shard, 3)[1].session.worker.ledger, 3).results
    expected = 2 if quiet is None else 5 / 3  # weights are gathered four times, gradients scattered once or twice
    assert found[0][1] == pytest.approx(expected * plain[0].sent_bytes(Kind.PAYLOAD))


# ---------------------------------------------------------------------------------------------- memory adds up


class Experts(nn.Module):
    """Two linear layers of the same shape, one of which is used in a step; gradients do not depend on weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.experts = nn.ModuleList(nn.Linear(7, 5, bias=False) for _ in range(2))
        self.common = nn.Linear(7, 5, bias=False)

    def forward(self, x: Tensor, which: int) -> Tensor:
        y: Tensor = self.experts[which](x) + self.common(x)
        return y


def linear(model: nn.Module, rank: int, step: int, which: int) -> Tensor:
    drawn = torch.Generator().manual_seed(31 * rank + step)
    x, c = torch.randn(4, 7, generator=drawn), torch.randn(4, 5, generator=drawn)
    total: Tensor = (model(x, which) * c).sum()
    return total


def left_out(optimizer: Any) -> dict[str, Tensor]:
    """What this worker's memory holds of each parameter."""
    sockets = optimizer.session.sockets
    names, found, state = ["experts.0", "experts.1", "common"], {}, sockets.state_dict()
    for hop, memory in enumerate(state["memory"]):
        for key, entry in memory.items():
            flat, _, _ = key.partition("@")
            layout = sockets._used[""].layout(flat, sockets.scatter.size)
            error = spread(entry["error"], state["sizes"], hop, state["rank"])
            for i, part in zip([int(i) for i in flat.strip("[]").split(",")], layout.whole(error), strict=True):
                found[names[i]] = found.get(names[i], 0) + part
    return found


@pytest.mark.parametrize(
    ("shape", "micro_batches"), [((1, 3), 1), ((1, 3), 2), ((2, 2), 1)], ids=["one hop", "micro-batches", "two hops"]
)
def test_what_was_sent_and_what_is_remembered_add_up_for_parameters_that_take_turns(
    shape: tuple[int, int], micro_batches: int
) -> None:
    """The flat tensors of both experts have the same length: their memories must not be taken for each other. What is
    left out between hosts counts as often as a host has workers."""
    ranks, steps, lr = shape[0] * shape[1], 4, 0.1
    strategy = "[scaled_sign+ef]@inside" + (" > [scaled_sign+ef]@across" if shape[0] > 1 else "")

    def job() -> tuple[list[Tensor], dict[str, Tensor]]:
        mesh: Any = laconic.init_device_mesh("cpu", shape, mesh_dim_names=("across", "inside"))
        model: Any = fully_shard(Experts(), mesh=mesh._flatten("all"))
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=lr)
        model, optimizer = laconic.distribute(model, optimizer, strategy, mesh)
        for step in range(steps):
            for part in range(micro_batches):  # all of them communicate, and `fully_shard` adds up
                linear(model, laconic.rank(), 10 * part + step, step % 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole_of(model), left_out(optimizer)

    start, found = Experts(), laconic.simulate(job, ranks).results
    for rank in range(ranks):
        for step in range(steps):
            for part in range(micro_batches):
                linear(start, rank, 10 * part + step, step % 2).backward()
    for (name, before), after in zip(start.named_parameters(), found[0][0], strict=True):
        memory = sum(left[name.removesuffix(".weight")] for _, left in found)
        assert before.grad is not None and float(memory.abs().max()) > 0.1  # type: ignore[union-attr]
        torch.testing.assert_close(after, before.detach() - lr / ranks * (before.grad - memory), rtol=0, atol=1e-5)


@pytest.mark.skipif(not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="came with torch 2.13")
def test_parameters_that_only_some_workers_use_get_the_others_average() -> None:
    def shard(model: Any, mesh: Any) -> nn.Module:
        model = fully_shard(model, mesh=mesh)
        model.set_reduce_scatter_unused_params(True)
        return model  # type: ignore[no-any-return]

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        return linear(model, rank, step, (rank + step) % 2)

    found = laconic.simulate(lambda: together(Experts, shard, 3, loss)[0], 3).results
    assert_alike(found, alone(Experts, 3, 3, loss), atol=3e-6)
