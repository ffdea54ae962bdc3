"""What distribute() promises a user's code beyond the bits, and what it refuses with the way out."""

from __future__ import annotations

import copy
import io
import re
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import laconic
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.worker import Kind
from tests import toys
from tests.real.pool import Pool, PoolRank
from tests.real.race import sgd
from tests.real.test_against_ddp import batch, mlp, plain_step


def distributed(member: PoolRank, strategy: str = "bsp", model: nn.Module | None = None, **options: Any) -> Any:
    model = mlp() if model is None else model
    return laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group, **options)


def refusal(member: PoolRank, act: Any) -> str:
    try:
        act()
    except laconic.LaconicError as error:
        return str(error)
    raise AssertionError("nothing was refused")


# ------------------------------------------------------------------------------------------------ what comes back


def keeps_the_users_objects(member: PoolRank) -> None:
    model = mlp()
    keys = list(model.state_dict())
    base = sgd(model.parameters())
    same, optimizer = laconic.distribute(model, base, process_group=member.process_group)
    assert same is model and list(model.state_dict()) == keys
    assert isinstance(optimizer, torch.optim.Optimizer) and type(optimizer) is DistributedOptimizer
    plain_step(model, optimizer, member.rank, 0)
    assert optimizer.param_groups is base.param_groups and optimizer.state is base.state
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)  # replaces base.state and base.param_groups
    assert optimizer.param_groups is base.param_groups and optimizer.state is base.state
    optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    base.param_groups[0]["momentum"] = 0.0
    base.param_groups[0]["weight_decay"] = 0.0
    plain_step(model, optimizer, member.rank, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "the rate is read at step()"
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *a: calls.append("outer"))
    base.register_step_post_hook(lambda *a: calls.append("inner"))
    plain_step(model, optimizer, member.rank, 2)
    assert calls == ["outer", "inner"]


def copies_are_plain_modules(member: PoolRank) -> None:
    model, optimizer = distributed(member)
    twin = copy.deepcopy(model)
    with twin.no_sync():
        twin(batch(0, 0)[0]).sum().backward()
    sent = optimizer.session.worker.ledger.sent_bytes()
    twin(batch(0, 0)[0]).sum().backward()
    assert optimizer.session.worker.ledger.sent_bytes() == sent
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    loaded(batch(0, 0)[0]).sum().backward()
    plain_step(model, optimizer, member.rank, 0)


def undoes_itself(member: PoolRank) -> None:
    model, optimizer = distributed(member)
    plain_step(model, optimizer, member.rank, 0)
    model, base = laconic.undistribute(model, optimizer)
    assert base is optimizer.base and not hasattr(model, "no_sync")
    assert not model._forward_hooks and all(not p._post_accumulate_grad_hooks for p in model.parameters())
    sent = optimizer.session.worker.ledger.sent_bytes()
    plain_step(model, base, member.rank, 1)
    assert optimizer.session.worker.ledger.sent_bytes() == sent
    again, second = laconic.distribute(model, base, "bsp / sequential", process_group=member.process_group)
    plain_step(again, second, member.rank, 2)


def two_models_do_not_meet(member: PoolRank) -> list[float]:
    """A second model in the process, trained in turns (a GAN): as if each were alone."""

    def train(together: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        pairs = [distributed(member, s, mlp()) for s in ("bsp", "bsp / allreduce(rank) / sequential")]
        orders = [[(k, s) for s in range(5) for k in range(2)], [(k, s) for k in range(2) for s in range(5)]]
        for which, step in orders[0 if together else 1]:
            plain_step(*pairs[which], member.rank, step)
        return [p.detach() for model, _ in pairs for p in model.parameters()]

    return [float((a - b).abs().max()) for a, b in zip(train(True), train(False), strict=True)]


def through_a_frozen_partner(member: PoolRank) -> None:
    """Gradients that flow through one distributed model into another, as a GAN's generator step does."""
    g, g_opt = distributed(member, "bsp", nn.Linear(12, 12))
    d, d_opt = distributed(member, "bsp", nn.Linear(12, 1))
    for step in range(3):
        x, _ = batch(member.rank, step)
        d(g(x)).mean().backward()
        g_opt.step()
        g_opt.zero_grad()
        d_opt.zero_grad()
    assert_equal_everywhere(member, g.weight)


def gathered(member: PoolRank, tensor: torch.Tensor) -> list[torch.Tensor]:
    rows = [torch.empty_like(tensor) for _ in range(member.size)]
    torch.distributed.all_gather(rows, tensor.detach().contiguous(), group=member.process_group)
    return rows


def assert_equal_everywhere(member: PoolRank, tensor: torch.Tensor) -> None:
    assert len({tuple(row.flatten().tolist()) for row in gathered(member, tensor)}) == 1


def averages_are_there_after_backward(member: PoolRank) -> None:
    model, _ = distributed(member)
    twin = copy.deepcopy(model)
    x, y = batch(member.rank, 0)
    F.cross_entropy(model(x), y).backward()
    expected = []
    for rank in range(member.size):
        twin.zero_grad()
        x, y = batch(rank, 0)
        F.cross_entropy(twin(x), y).backward()
        expected.append([p.grad.clone() for p in twin.parameters()])
    for k, p in enumerate(model.parameters()):
        mean = sum(rows[k] for rows in expected) / member.size
        torch.testing.assert_close(p.grad, mean)
    assert all(p.grad.stride() == p.stride() for p in model.parameters())


def autograd_grad_says_nothing(member: PoolRank) -> None:
    """A gradient penalty's torch.autograd.grad is no training step."""
    model, optimizer = distributed(member)
    x = batch(member.rank, 0)[0].requires_grad_()
    sent = optimizer.session.worker.ledger.sent_bytes()
    torch.autograd.grad(model(x).sum(), x)
    assert optimizer.session.worker.ledger.sent_bytes() == sent
    plain_step(model, optimizer, member.rank, 0)


def survives_a_backward_that_raises(member: PoolRank) -> None:
    model, optimizer = distributed(member, "bsp / wfbp(0)")
    x, y = batch(member.rank, 0)
    loss = F.cross_entropy(model(x), y)
    handle = model[0].weight.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    optimizer.zero_grad()
    for step in range(3):
        plain_step(model, optimizer, member.rank, step)
    assert_equal_everywhere(member, model[0].weight)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor, both: bool) -> Any:
        return self.b(self.a(x)) if both else self.a(x)


def chained_models_with_unused_parameters(member: PoolRank) -> None:
    """Messages that leave early on one rank and late on another, in two models of one backward pass."""
    g, g_opt = distributed(member, "bsp / wfbp(0)", nn.Linear(12, 12))
    d, d_opt = distributed(member, "bsp / wfbp(0)", Critic())
    for step in range(4):
        x, _ = batch(member.rank, step)
        d(g(x), both=member.rank == 1).square().mean().backward()
        for optimizer in (g_opt, d_opt):
            optimizer.step()
            optimizer.zero_grad()
    for parameter in [*g.parameters(), *d.parameters()]:
        assert_equal_everywhere(member, parameter)


def two_backwards_over_one_graph(member: PoolRank) -> None:
    """Buffers that follow rank 0 must not look changed to a graph that is walked twice."""
    model, optimizer = distributed(member, "bsp", nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)))
    x, y = batch(member.rank, 0)
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()


def a_skipped_step_is_no_second_backward(member: PoolRank) -> None:
    model, optimizer = distributed(member, "bf16+ef")
    for step in range(3):
        x, y = batch(member.rank, step)
        F.cross_entropy(model(x), y).backward()
        if step != 1:
            optimizer.step()
        optimizer.zero_grad()


def one_overflow_is_not_remembered(member: PoolRank) -> None:
    model, optimizer = distributed(member, "fp16+ef")
    for step in range(3):
        x, y = batch(member.rank, step)
        (F.cross_entropy(model(x), y) * (1e30 if step == 1 else 1)).backward()
        if step != 1:
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
            optimizer.step()
        optimizer.zero_grad()


def a_line_search_decides_alike(member: PoolRank) -> None:
    model = mlp()
    base = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    model, optimizer = laconic.distribute(model, base, process_group=member.process_group)
    for step in range(3):
        x, y = batch(member.rank, step)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_equal_everywhere(member, model[0].weight)


def survives_a_raising_backward_that_bypasses_forward(member: PoolRank) -> None:
    model, optimizer = distributed(member, "bsp / wfbp(0)")
    x, y = batch(member.rank, 0)
    for quiet in (False, True):
        handle = model[0].weight.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            if quiet:
                with model.no_sync():
                    F.cross_entropy(model.forward(x), y).backward()
            else:
                F.cross_entropy(model.forward(x), y).backward()
        handle.remove()
        optimizer.zero_grad()
        for step in range(3):
            x, y = batch(member.rank, step)
            F.cross_entropy(model.forward(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_equal_everywhere(member, model[0].weight)


def a_returned_parameter_gathers_no_hooks(member: PoolRank) -> None:
    class Telling(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.weight

    model, optimizer = distributed(member, "bsp", Telling(12, 5))
    for _ in range(3):
        out, weight = model(batch(member.rank, 0)[0])
        (out.sum() + weight.square().sum()).backward()
        optimizer.step()
    assert not model.weight._backward_hooks


def a_refused_optimizer_leaves_no_hooks(member: PoolRank) -> None:
    model = mlp()
    stranger = sgd([*model.parameters(), nn.Parameter(torch.zeros(3))])
    refusal(member, lambda: laconic.distribute(model, stranger, process_group=member.process_group))
    assert not model._forward_hooks and all(not p._post_accumulate_grad_hooks for p in model.parameters())


def counts_exactly(member: PoolRank, strategy: str) -> tuple[float, float]:
    model, optimizer = distributed(member, strategy)
    ledger = optimizer.session.worker.ledger
    plain_step(model, optimizer, member.rank, 0)  # the first step also agrees on the order of arrival
    before = ledger.sent_bytes(Kind.PAYLOAD), ledger.sent_bytes(Kind.CONTROL)
    plain_step(model, optimizer, member.rank, 1)
    return ledger.sent_bytes(Kind.PAYLOAD) - before[0], ledger.sent_bytes(Kind.CONTROL) - before[1]


def log_and_shard(member: PoolRank) -> None:
    assert (laconic.rank(), laconic.size()) == (torch.distributed.get_rank(), torch.distributed.get_world_size())
    part, padded = laconic.shard(range(10)), laconic.shard(range(10), remainder="pad")
    assert len(part) == 10 // laconic.size() and len(padded) == -(-10 // laconic.size())
    assert part[0] == laconic.rank()
    laconic.log(loss=torch.tensor(1.5), accuracy=0.5)


@pytest.mark.parametrize(
    "check",
    [
        keeps_the_users_objects,
        copies_are_plain_modules,
        undoes_itself,
        through_a_frozen_partner,
        averages_are_there_after_backward,
        autograd_grad_says_nothing,
        survives_a_backward_that_raises,
        survives_a_raising_backward_that_bypasses_forward,
        chained_models_with_unused_parameters,
        two_backwards_over_one_graph,
        a_skipped_step_is_no_second_backward,
        one_overflow_is_not_remembered,
        a_line_search_decides_alike,
        a_returned_parameter_gathers_no_hooks,
        a_refused_optimizer_leaves_no_hooks,
        log_and_shard,
    ],
)
def test_contract(pool: Pool, check: Any) -> None:
    pool.run(check, workers=4 if check is log_and_shard else 2)


def test_two_models_do_not_meet(pool: Pool) -> None:
    assert max(max(row) for row in pool.run(two_models_do_not_meet)) == 0.0


@pytest.mark.parametrize("strategy", ["bsp", "bsp / allreduce(rank)", "bsp / wfbp(0)"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_bytes_are_a_rings(pool: Pool, strategy: str, workers: int) -> None:
    model = mlp()
    elements, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
    factor = 2 * (workers - 1) / workers
    padding = 4 * tensors * workers if "rank" in strategy else 1e-3  # blocks of equal length
    for payload, control in pool.run(counts_exactly, strategy, workers=workers):
        assert payload == pytest.approx(factor * 4 * elements, abs=padding)
        assert control == pytest.approx(factor * 4 * tensors, abs=padding)


# ------------------------------------------------------------------------------------------------ refusals


def refuses_wrapped(member: PoolRank) -> str:
    ddp = DistributedDataParallel(mlp(), process_group=member.process_group)
    return refusal(member, lambda: distributed(member, "bsp", ddp))


def refuses_twice(member: PoolRank) -> str:
    model, _ = distributed(member)
    return refusal(member, lambda: distributed(member, "bsp", model))


def refuses_strangers(member: PoolRank) -> str:
    model, extra = mlp(), nn.Parameter(torch.zeros(3))
    optimizer = sgd([*model.parameters(), extra])
    return refusal(member, lambda: laconic.distribute(model, optimizer, process_group=member.process_group))


def refuses_a_late_stranger(member: PoolRank) -> str:
    _, optimizer = distributed(member)
    return refusal(member, lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]}))


def refuses_unfrozen(member: PoolRank) -> str:
    model = mlp()
    model[0].weight.requires_grad_(False)
    model, optimizer = distributed(member, "bsp", model)
    model[0].weight.requires_grad_(True)
    return refusal(member, lambda: plain_step(model, optimizer, member.rank, 0))


def refuses_nothing_to_train(member: PoolRank) -> str:
    model = mlp()
    optimizer = sgd(model.parameters())
    model.requires_grad_(False)
    return refusal(member, lambda: laconic.distribute(model, optimizer, process_group=member.process_group))


def refuses_lazy(member: PoolRank) -> str:
    model = nn.Sequential(nn.LazyLinear(5))
    optimizer = sgd(model.parameters())
    return refusal(member, lambda: laconic.distribute(model, optimizer, process_group=member.process_group))


class TiedUnderReentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        for _ in range(2):
            x = torch.tanh(checkpoint(self.shared, x, use_reentrant=True))
        return self.head(x)


def refuses_tied_reentrant(member: PoolRank) -> str:
    model, optimizer = distributed(member, "bsp", TiedUnderReentrant())
    return refusal(member, lambda: plain_step(model, optimizer, member.rank, 0))


def refuses_two_backwards_with_memory(member: PoolRank) -> str:
    model, _ = distributed(member, "bf16+ef")
    x, y = batch(member.rank, 0)
    F.cross_entropy(model(x), y).backward()
    return refusal(member, lambda: F.cross_entropy(model(x), y).backward())


def refuses_a_scaler_when_late(member: PoolRank) -> str:
    toys.register()
    model, optimizer = distributed(member, "toy_local(2)")
    scaler = torch.amp.GradScaler("cpu")
    x, y = batch(member.rank, 0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    return refusal(member, lambda: scaler.step(optimizer))


def refuses_a_scaler_with_memory(member: PoolRank) -> str:
    model, optimizer = distributed(member, "bf16+ef")
    scaler = torch.amp.GradScaler("cpu")
    x, y = batch(member.rank, 0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    return refusal(member, lambda: scaler.step(optimizer))


def refuses_sparse_local(member: PoolRank) -> str:
    toys.register()
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    return refusal(member, lambda: distributed(member, "toy_local(2)", model))


def refuses_tiers_without_a_mesh(member: PoolRank) -> str:
    return refusal(member, lambda: distributed(member, "[bsp]@node > [bsp]@site"))


REFUSALS = {
    refuses_wrapped: "DistributedDataParallel.*model.module.*ddp_hook",
    refuses_twice: "undistribute",
    refuses_strangers: "holds 1 parameter.*register them in the model",
    refuses_a_late_stranger: "register them in the model",
    refuses_unfrozen: "'0.weight' was frozen.*distribute again",
    refuses_nothing_to_train: "no parameter that requires a gradient",
    refuses_lazy: "'0.weight' has no shape yet: run one batch",
    refuses_tied_reentrant: "'shared.*use_reentrant=False",
    refuses_two_backwards_with_memory: r"no_sync\(\)",
    refuses_a_scaler_when_late: "GradScaler.*bfloat16",
    refuses_a_scaler_with_memory: "GradScaler.*scale that changes",
    refuses_sparse_local: "sparse='dense'",
    refuses_tiers_without_a_mesh: "node, site need mesh=",
}


@pytest.mark.parametrize("check", REFUSALS)
def test_refusal_says_the_way_out(pool: Pool, check: Any) -> None:
    for message in pool.run(check):
        assert re.search(REFUSALS[check], message), message


# ------------------------------------------------------------------------------------------------ non-finite gradients


def meets_nan(member: PoolRank, strategy: str, nonfinite: str, value: float) -> tuple[str, bool]:
    toys.register()
    model, optimizer = distributed(member, strategy, nonfinite=nonfinite)
    outcome = "passed"
    for step in range(4):
        x, y = batch(member.rank, step)
        loss = F.cross_entropy(model(x), y)
        if step == 2 and member.rank == member.size - 1:
            loss = loss * value
        try:
            loss.backward()
        except laconic.NonFinite as error:
            outcome = str(error)
            break
        optimizer.step()
        optimizer.zero_grad()
    return outcome, all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("strategy", ["bsp", "bsp / sequential", "bf16+ef", "bsp / allreduce(rank)", "toy_local(8)"])
def test_nonfinite_is_refused_on_all_ranks_alike(pool: Pool, strategy: str, value: float) -> None:
    outcomes = pool.run(meets_nan, strategy, "raise", value, workers=3)
    assert len({message for message, _ in outcomes}) == 1
    assert "step 2 is NaN or infinite" in outcomes[0][0] and all(finite for _, finite in outcomes)


def test_nonfinite_is_passed_on_as_ddp_does(pool: Pool) -> None:
    assert pool.run(meets_nan, "bsp", "pass", float("nan")) == [("passed", False)] * 2


# ------------------------------------------------------------------------------------------------ disagreement at start


def disagrees(member: PoolRank, what: str) -> str:
    odd = member.rank == 1
    model, strategy = mlp(), "bsp"
    if what == "model" and odd:
        model = nn.Sequential(nn.Linear(12, 33), nn.Linear(33, 5))
    elif what == "dtype" and odd:
        model = model.to(torch.bfloat16)
    elif what == "strategy" and odd:
        strategy = "bsp / sequential"
    elif what == "frozen" and odd:
        model[0].weight.requires_grad_(False)
    elif what == "version" and odd:
        from laconic.runtime import agreement

        agreement.__version__ = "9.9.9"
    try:
        return refusal(member, lambda: distributed(member, strategy, model))
    finally:
        if what == "version":
            from laconic import __version__
            from laconic.runtime import agreement

            agreement.__version__ = __version__


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("model", r"parameter '0.weight' is float32\[32, 12\].* on rank 0 and float32\[33, 12\].* on rank 1"),
        ("dtype", r"parameter '0.weight' is float32.* and bfloat16"),
        ("strategy", r"strategy is 'bsp / none / allreduce' on rank 0 and '.*sequential' on rank 1"),
        ("frozen", r"parameter '0.weight' is .*trainable on rank 0 and"),
        ("version", r"laconic version is .* on rank 0 and '9.9.9' on rank 1"),
    ],
)
def test_disagreement_is_named_on_every_rank(pool: Pool, what: str, named: str) -> None:
    for message in pool.run(disagrees, what, workers=3):
        assert re.search(named, message), message


# ------------------------------------------------------------------------------------------------ memory and warnings


def warns_of_lost_memory(member: PoolRank) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, plain = distributed(member, "bsp")
        plain.state_dict()
        _, optimizer = distributed(member, "bf16+ef")
        optimizer.state_dict()
    return [str(w.message) for w in caught]


def test_saving_one_ranks_state_of_a_sentence_with_memory_warns(pool: Pool) -> None:
    for messages in pool.run(warns_of_lost_memory):
        assert len(messages) == 1 and "laconic.checkpoint" in messages[0]
