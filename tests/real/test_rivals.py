"""Rivals: other libraries' methods, handed a model by the line that hands it to ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic.errors import ContractError, LaconicError, StrategyError
from laconic.experiments.rivals.text import RIVALS, check, is_rival, parse, read
from laconic.strategy import Strategy
from tests.real.launching import START_SECONDS, Launched
from tests.real.pool import Pool, PoolRank
from tests.real.race import by_laconic, difference, sgd
from tests.real.test_against_ddp import batch, mlp, plain_step

Trained = list[dict[str, torch.Tensor]]


# ------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("name", RIVALS)
def test_a_rivals_text_reads_back(name: str) -> None:
    rival = parse(name)
    assert str(rival) == name and parse(str(rival)) == rival == read(name)
    assert type(rival).summary()


def test_knobs_are_read_by_name_and_by_place() -> None:
    assert str(parse("Torch : PowerSGD(2, start=20)")) == "torch:powersgd(rank=2, start=20)"
    assert parse("torch:ddp(bucket_cap_mb=none)") == parse("torch:ddp")
    assert isinstance(read("bsp / cast_bf16+ef"), Strategy)
    assert not is_rival("{matrix: cast_bf16, else: none}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch:dpd", "no rival is called torch:dpd; write torch:ddp"),
        ("horovod:ring", "no rival is called horovod:ring; write "),
        ("torch:ddp(bucket=1)", "torch:ddp has no argument bucket; it takes bucket_cap_mb"),
        ("torch:ddp(bucket_cap_mb=0)", "bucket_cap_mb is a number or none, above 0"),
        ("torch:ddp(1, bucket_cap_mb=2)", "torch:ddp is given bucket_cap_mb twice"),
        ("torch:ddp(1, 2)", "torch:ddp is given 2 arguments"),
        ("torch:ddp16(dtype=int8)", "dtype is one of fp16, bf16"),
        ("torch:powersgd(start=1)", "start is a whole number, at least 2"),
        ("torchft:diloco(outer_momentum=1)", "outer_momentum is a number, at least 0 and below 1"),
        ("torch:ddp / cast_bf16", "torch:ddp is a whole method of its own and stands alone"),
        ("torch:ddp until step 5, then bsp", "stands alone"),
        ("torch:", "expected a method of torch"),
    ],
)
def test_a_text_that_makes_no_sense_is_refused_before_anything_starts(text: str, says: str) -> None:
    with pytest.raises(StrategyError, match=says.replace("(", r"\(")):
        check(text)


def test_what_a_rival_cannot_do_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StrategyError, match="torch's own code needs real processes"):
        check("torch:ddp", virtual=True)
    with pytest.raises(StrategyError, match="leave --servers out"):
        check("torch:ddp", servers=1)
    with pytest.raises(StrategyError, match="a dry run prices our own sentences"):
        check("torch:ddp", dry_run=True)
    monkeypatch.setattr("laconic.experiments.rivals.base.find_spec", lambda name: None)
    with pytest.raises(LaconicError, match=r"torchft's own code, which is not installed: pip install 'laconic\[riv"):
        check("torchft:diloco")


def test_virtual_workers_refuse_rivals_by_name() -> None:
    def train() -> None:
        model = nn.Linear(2, 2)
        laconic.distribute(model, torch.optim.SGD(model.parameters()), "torch:ddp")

    with pytest.raises(StrategyError, match="run `torch:ddp` with the real engine"):
        laconic.simulate(train, workers=2)


# ------------------------------------------------------------------------------------------------ real processes


def trained(member: PoolRank, strategy: str, looks: list[int]) -> Trained:
    """The parameters after so many steps."""
    torch.manual_seed(member.rank)  # rank 0's numbers must reach everyone
    model = mlp()
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)
    assert isinstance(optimizer, torch.optim.Optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # looks at what it is given
    seen = []
    for step in range(looks[-1]):
        plain_step(model, optimizer, member.rank, step)
        if step + 1 in looks:
            seen.append({n.removeprefix("module."): p.detach().clone() for n, p in model.named_parameters()})
    laconic.clip_grad_norm_(optimizer, 1.0)
    with pytest.raises(ContractError, match=r"laconic\.checkpoint cannot see into"):
        laconic.checkpoint("nowhere", model, optimizer)
    with pytest.raises(ContractError, match=r"laconic\.undistribute cannot see into"):
        laconic.undistribute(model, optimizer)
    return seen


def refusal(member: PoolRank, strategy: str) -> str:
    model = mlp()
    with pytest.raises(ContractError) as caught:
        laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)
    return str(caught.value)


def loss(parameters: dict[str, torch.Tensor]) -> float:
    model = mlp()
    model.load_state_dict(parameters)
    batches = [batch(rank, step) for rank in range(2) for step in range(20)]
    with torch.no_grad():
        return float(sum(F.cross_entropy(model(x), y) for x, y in batches))


def ddp_and_bsp(member: PoolRank) -> float:
    ours = by_laconic(member, mlp, plain_step, steps=5)
    torch.manual_seed(1 if member.rank == 0 else 999)
    model = mlp()
    model, optimizer = laconic.distribute(
        model, sgd(model.parameters()), "torch:ddp(bucket_cap_mb=1)", process_group=member.process_group
    )
    for step in range(5):
        plain_step(model, optimizer, member.rank, step)
    return difference(ours, {n.removeprefix("module."): p.detach() for n, p in model.named_parameters()})


def test_ddp_gives_the_bits_of_bsp(pool: Pool) -> None:
    assert pool.run(ddp_and_bsp) == [0.0, 0.0]


def small_and_large_batches(member: PoolRank, zero_first: bool) -> float:
    """Two workers with two micro-steps each against one worker with everything."""
    torch.manual_seed(3)
    model = mlp().double()
    alone = mlp().double()
    alone.load_state_dict(model.state_dict())
    single = sgd(alone.parameters())
    model, optimizer = laconic.distribute(
        model, sgd(model.parameters()), "torch:accumulate(steps=2)", process_group=member.process_group
    )
    for step in range(6):
        x, y = batch(member.rank, step)
        if zero_first:
            optimizer.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
        if step % 2:
            xs, ys = zip(*(batch(r, s) for r in range(member.size) for s in (step - 1, step)), strict=True)
            F.cross_entropy(alone(torch.cat(xs).double()), torch.cat(ys)).backward()
            single.step()
            single.zero_grad()
    return max(float((p - q).abs().max()) for p, q in zip(model.parameters(), alone.parameters(), strict=True))


@pytest.mark.parametrize("zero_first", [False, True])
def test_accumulating_is_one_step_of_a_larger_batch(pool: Pool, zero_first: bool) -> None:
    assert max(pool.run(small_and_large_batches, zero_first)) <= 1e-12


def quiet_micro_steps(member: PoolRank) -> list[bool]:
    """Whether the workers' gradients are alike after each backward: only the one that talked leaves them so."""
    model = mlp()
    model, optimizer = laconic.distribute(
        model, sgd(model.parameters()), "torch:accumulate(steps=3)", process_group=member.process_group
    )
    alike = []
    for step in range(6):
        x, y = batch(member.rank, step)
        F.cross_entropy(model(x), y).backward()
        mine = torch.cat([p.grad.view(-1) for p in model.parameters()])
        theirs = mine.clone()
        torch.distributed.broadcast(theirs, 0, group=member.process_group)
        alike.append(bool(torch.equal(mine, theirs)))
        optimizer.step()
        optimizer.zero_grad()
    return alike


def test_only_the_last_micro_step_communicates(pool: Pool) -> None:
    assert pool.run(quiet_micro_steps)[1] == [False, False, True, False, False, True]


@pytest.mark.parametrize("strategy", ["torch:ddp16", "torch:powersgd(rank=2, start=2)"])
def test_compressed_ddp_trains_and_keeps_replicas_equal(pool: Pool, strategy: str) -> None:
    (begin, a), (_, b) = pool.run(trained, strategy, [1, 30])
    assert difference(a, b) == 0.0
    assert loss(a) < loss(begin)
    (_, exact), _ = pool.run(trained, "torch:ddp", [1, 30])
    assert difference(a, exact) > 0.0, "nothing was compressed"


def test_torchs_bf16_hook_is_refused_where_torch_would_refuse_it(pool: Pool) -> None:
    for message in pool.run(refusal, "torch:ddp16(dtype=bf16)"):
        assert message.startswith("torch's bf16 hook runs on NCCL only")


def replicas_meet(first: Trained, second: Trained) -> list[bool]:
    return [difference(a, b) == 0.0 for a, b in zip(first, second, strict=True)]


def test_post_local_sgd_averages_parameters_now_and_then(pool: Pool) -> None:
    looks = list(range(1, 8))
    first, second = pool.run(trained, "torch:postlocal(period=3, start=2)", looks)
    assert replicas_meet(first, second) == [True, True, True, False, False, True, False]


def test_accelerates_local_sgd_averages_parameters_every_period(pool: Pool) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'laconic[rivals]'")
    first, second, *_ = pool.run(trained, "accelerate:local_sgd(period=3)", [2, 3, 4, 6], workers=4)
    assert replicas_meet(first, second) == [False, True, False, True]
    for message in pool.run(refusal, "accelerate:local_sgd", workers=2):
        assert "averages over all processes of the job" in message


def diloco_by_hand(member: PoolRank, period: int, looks: list[int]) -> Trained:
    """Algorithm 1 of the paper, with two workers in one process."""
    torch.manual_seed(0)
    model = mlp()
    shared = [p.detach().clone() for p in model.parameters()]
    replicas = [(m := mlp(), sgd(m.parameters())) for _ in range(2)]
    outer_model = mlp()
    outer = torch.optim.SGD(outer_model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for m in (outer_model, *(m for m, _ in replicas)):
        for p, q in zip(m.parameters(), shared, strict=True):
            p.data.copy_(q)
    seen = []
    for step in range(looks[-1]):
        for rank, (m, optimizer) in enumerate(replicas):
            plain_step(m, optimizer, rank, step)
        if (step + 1) % period == 0:
            for p, a, b in zip(outer_model.parameters(), *(m.parameters() for m, _ in replicas), strict=True):
                p.grad = ((p - a) + (p - b)).detach() / 2
            outer.step()
            for m, _ in replicas:
                m.load_state_dict(outer_model.state_dict())
        if step + 1 in looks:
            seen.append({n: p.detach().clone() for n, p in replicas[member.rank][0].named_parameters()})
    return seen


def test_torchfts_diloco_is_the_papers(pool: Pool) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed: pip install 'laconic[rivals]'")
    looks = [2, 3, 4, 6]
    first, second = pool.run(trained, "torchft:diloco(period=3)", looks)
    assert replicas_meet(first, second) == [False, True, False, True]
    expected, _ = pool.run(diloco_by_hand, 3, looks)
    assert max(difference(a, b) for a, b in zip(first, expected, strict=True)) < 1e-5


SCRIPT = """
import torch, laconic
model = torch.nn.Linear(4, 2)
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp")
for _ in range(4):
    loss = model(torch.ones(3, 4) * laconic.rank()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    laconic.log(loss=loss)
print("weights", model.weight.tolist(), laconic.size())
"""


@pytest.mark.long
def test_the_launchers_rival_replaces_the_scripts_strategy(launch: Callable[..., Launched], tmp_path: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed: pip install 'laconic[rivals]'")
    script = tmp_path / "tiny.py"
    script.write_text(SCRIPT)
    launched = launch("--workers", "2", "--strategy", "torchft:diloco(period=2)", script=script)
    assert launched.exit_code(START_SECONDS) == 0, launched.console
    assert "strategy `torchft:diloco(period=2)` replaces the script's `bsp`" in launched.console
    message = [next(x for x in launched.log(r).splitlines() if x.startswith("weights")) for r in range(2)]
    assert message[0] == message[1], "after a whole number of periods all have the same"
    assert not launched.left_behind()
