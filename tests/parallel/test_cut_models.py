"""Models that are cut among the devices of one dimension of a mesh, and copied along another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import ContractError, LaconicError, NonFinite, StrategyError
from laconic.parallel.tensor.megatron import local, whole
from laconic.runtime.cuts import cut_along
from laconic.worker import Kind
from tests.cases import first_of
from tests.parallel.cut_training import (
    COPIES,
    PARTS,
    STEPS,
    Block,
    alone,
    assert_close,
    connect_rank,
    distributed,
    loss_of,
    on_the_mesh,
    optimizer_of,
    trained,
)

LOSSY = [
    "topk(0.1)+ef",
    "flat+topk(0.1)+ef",
    "local(2) / int8+ef",
    "[bsp]@tp > [local(2) / qsgd(4)]@dp",
    "[bsp]@tp > [topk(0.1)+ef]@dp",
    "randk(0.2)",
    "qsgd(4)",
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("strategy", "tiers"), [("bsp", False), ("[bsp]@tp > [bsp]@dp", True)])
def test_copies_of_a_cut_model_train_as_one_process(strategy: str, tiers: bool, seed: int) -> None:
    for found, _ in on_the_mesh(lambda: trained(strategy, seed, tiers)):
        assert_close(found, alone(seed))


@pytest.mark.parametrize(("strategy", "tiers"), [("local(2)", False), ("[bsp]@tp > [local(2)]@dp", True)])
def test_local_steps_between_copies(strategy: str, tiers: bool) -> None:
    for found, _ in on_the_mesh(lambda: trained(strategy, 2, tiers)):
        assert_close(found, alone(2, period=2))


@pytest.mark.parametrize("strategy", first_of(LOSSY, 4))
def test_what_is_whole_stays_equal_to_the_bit(strategy: str) -> None:
    """Whole parameters are equal everywhere, and parts on all copies, although what is exchanged is not exact."""
    results = on_the_mesh(lambda: trained(strategy, 1, tiers=strategy.startswith("["))[0])
    for found in results:
        assert all(map(torch.equal, found, results[0]))
    assert max(float((a - b).abs().max()) for a, b in zip(results[0], alone(1), strict=True)) > 1e-4


def test_messages_and_memory_are_of_this_devices_part() -> None:
    def sent(strategy: str) -> tuple[float, dict[str, int], dict[str, int]]:
        model, optimizer, copy = distributed(strategy)
        ledger = optimizer.session.worker.ledger
        before = ledger.sent_bytes(Kind.PAYLOAD)
        loss_of(model, 0, 0, copy).backward()
        optimizer.step()
        tiers = optimizer.session.arrangement.tiers
        memory = {name: x.numel() for t in tiers for name, state in t.memory.items() for x in state.values()}
        parts = {name: local(p).numel() for name, p in model.named_parameters()}
        return ledger.sent_bytes(Kind.PAYLOAD) - before, memory, parts

    for payload, _, parts in on_the_mesh(lambda: sent("bsp")):
        assert payload == pytest.approx(4 * sum(parts.values()))  # two copies: a ring sends each element once
    for payload, memory, parts in on_the_mesh(lambda: sent("topk(0.5)+ef")):
        assert memory and all(memory[name] == parts[name] for name in memory)
        assert memory["up.weight"] == 5 * 6
        assert payload < 4 * sum(parts.values())


def test_every_worker_starts_from_the_first_that_has_the_same() -> None:
    def start(tiers: bool) -> dict[str, Tensor]:
        strategy = "[bsp]@tp > [bsp]@dp" if tiers else "bsp"
        model, _, _ = distributed(strategy, tiers=tiers, own_seed=True)
        return {name: local(p.detach()).clone() for name, p in model.named_parameters()}

    for found in (on_the_mesh(lambda: start(tiers=False)), on_the_mesh(lambda: start(tiers=True))):
        for name in found[0]:
            is_cut = name.startswith("up") or name == "down.weight"
            for rank, values in enumerate(found):
                assert torch.equal(values[name], found[rank % PARTS if is_cut else 0][name])


@pytest.mark.parametrize(("strategy", "tiers"), [("bsp", False), ("[bsp]@tp > [bsp]@dp", True)])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_a_norm_is_that_of_the_whole_gradient(strategy: str, tiers: bool, clip: float) -> None:
    norms: list[float] = []

    def clipped(optimizer: Any) -> None:
        norms.append(float(laconic.clip_grad_norm_(optimizer, clip)))

    for found, _ in on_the_mesh(lambda: trained(strategy, 3, tiers, clipped)):
        assert_close(found, alone(3, clip=clip))
    assert len(set(norms)) == STEPS  # the same on all workers


def test_nobody_steps_where_one_part_is_not_finite() -> None:
    def caught() -> str:
        model, optimizer, copy = distributed("bsp", nonfinite="raise")
        loss = loss_of(model, 0, 0, copy)
        if optimizer.session.worker.rank == 3:
            model.get_parameter("up.weight").register_hook(lambda gradient: gradient * float("nan"))
        try:
            loss.backward()
        except NonFinite as error:
            return str(error)
        return ""

    assert all("NaN" in message for message in on_the_mesh(caught))


@pytest.mark.parametrize("strategy", ["[bsp]@tp > [topk(0.2)+ef]@dp", "[bsp]@tp > [local(3) / int8+ef]@dp"])
def test_a_checkpoint_continues_to_the_bit(strategy: str, tmp_path: Path) -> None:
    def saved(resumes: bool) -> list[Tensor]:
        model, optimizer, copy = distributed(strategy, tiers=True, own_seed=resumes)
        if resumes:
            laconic.resume(tmp_path, model, optimizer)
        for step in range(2 if resumes else 0, STEPS):
            if step == 2 and not resumes:
                laconic.checkpoint(tmp_path, model, optimizer)
            loss_of(model, 0, step, copy).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [local(p.detach()).clone() for p in model.parameters()]

    first = on_the_mesh(lambda: saved(False))
    again = on_the_mesh(lambda: saved(True))
    for one, other in zip(first, again, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_checkpoint_without_all_parts_is_refused(tmp_path: Path) -> None:
    def refused() -> str:
        model, optimizer, _ = distributed("bsp")
        with pytest.raises(ContractError) as caught:
            laconic.checkpoint(tmp_path, model, optimizer)
        return str(caught.value)

    assert all("does not span" in message for message in on_the_mesh(refused))


@pytest.mark.parametrize(
    ("strategy", "tiers", "part"),
    [
        ("bsp", True, "'up.weight' is cut among ranks"),
        ("asp / none / ps", False, "has a server"),
        ("adacomm", False, "would decide differently"),
        ("bsp / none / allreduce / dear", False, "write wfbp"),
        ("bsp / none / allreduce / mgwfbp", False, "write wfbp"),
        ("one_bit_adam", False, "parts of them"),
        ("auto", False, "`auto` measures whole models"),
    ],
)
def test_what_parts_cannot_do_is_refused(strategy: str, tiers: bool, part: str) -> None:
    def refused() -> str:
        with pytest.raises(LaconicError) as caught:
            distributed(strategy, tiers=tiers)
        return str(caught.value)

    assert all(part in message for message in on_the_mesh(refused))


def test_a_model_of_which_nothing_would_be_averaged_is_refused() -> None:
    def refused() -> str:
        mesh: Any = laconic.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        model = nn.Linear(4, 4, bias=False)
        cut_along(model.parameters(), mesh)
        with pytest.raises(ContractError) as caught:
            laconic.distribute(model, optimizer_of(model), "bsp", mesh)
        return str(caught.value)

    assert all("every parameter" in message for message in on_the_mesh(refused))


class Expert(nn.Module):
    """A router that all devices share, and an expert that belongs to one of them."""

    def __init__(self, which: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.router = nn.Linear(3, 3)
        torch.manual_seed(7 + which)
        self.expert = nn.Linear(3, 3 + which)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.expert(torch.tanh(self.router(x)))
        return out


def test_experts_belong_to_one_device_of_their_dimension() -> None:
    """Routers are averaged over all workers, experts over the copies of each, whether plain or by placement."""

    def step() -> list[Tensor]:
        mesh: Any = laconic.init_device_mesh("cpu", (COPIES, PARTS), mesh_dim_names=("dp", "ep"))
        here = mesh["dp"].get_group().rank() * PARTS + mesh["ep"].get_group().rank()
        model = Expert(here % PARTS)
        cut_along(model.expert.parameters(), mesh["ep"])
        made, optimizer = laconic.distribute(
            model, torch.optim.SGD(model.parameters(), 1.0), "[bsp]@ep > [bsp]@dp", mesh
        )
        made(torch.full((1, 3), 1.0 + here)).sum().backward()
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    models = [Expert(rank % PARTS) for rank in range(COPIES * PARTS)]
    for rank, model in enumerate(models):
        model(torch.full((1, 3), 1.0 + rank)).sum().backward()
    for rank, found in enumerate(on_the_mesh(step)):
        copies = [model for other, model in enumerate(models) if other % PARTS == rank % PARTS]
        for place, (value, start) in enumerate(zip(found, models[rank].parameters(), strict=True)):
            those = models if place < 2 else copies
            gradients = [list(m.parameters())[place].grad for m in those]
            mean = torch.stack([g for g in gradients if g is not None]).mean(0)
            torch.testing.assert_close(value, start.detach() - mean)


def test_whole_gradients_that_are_parts_of_a_sum_are_completed() -> None:
    """Behind a sequence that is cut, a norm's gradient is a sum of which each device has a part."""
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    def step() -> list[Tensor]:
        mesh: Any = laconic.init_device_mesh("cpu", (COPIES, PARTS), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(nn.LayerNorm(4))
        parallelize_module(model, mesh["tp"], {"0": SequenceParallel()}, src_data_rank=None)
        made, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 1.0), "bsp", mesh["dp"])
        x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(connect_rank(mesh) // PARTS))
        own = x.chunk(PARTS, 1)[mesh["tp"].get_group().rank()]
        made(own).to_local().square().sum().backward()
        for parameter in model.parameters():  # compressors have seen the sum
            assert parameter.grad.placements == parameter.placements  # type: ignore[union-attr, attr-defined]
        optimizer.step()
        return [whole(p.detach()).clone() for p in model.parameters()]

    model = nn.LayerNorm(4)
    for copy in range(COPIES):
        x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(copy))
        (model(x).square().sum() / COPIES).backward()
    for found in on_the_mesh(step):
        for value, parameter in zip(found, model.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(value, parameter.detach() - parameter.grad)


def test_a_block_that_is_whole_is_distributed_as_before() -> None:
    """A mesh without cuts averages over all of its workers."""

    def step() -> float:
        mesh: Any = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = Block(0)
        _, optimizer = laconic.distribute(model, optimizer_of(model), "bsp", mesh)
        assert not optimizer.session.cuts  # type: ignore[attr-defined]
        with pytest.raises(StrategyError, match="no tier spans"):
            other = Block(1)
            laconic.distribute(other, optimizer_of(other), "[bsp]@dp", mesh)
        return 0.0

    on_the_mesh(step)
