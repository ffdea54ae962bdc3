"""Compressors that reach into the optimizer: momentum moves to the workers (DGC), or is what is sent (1-bit Adam)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import laconic
from laconic.compression.codes import runs
from laconic.compression.payload import pack
from laconic.errors import ContractError
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.compression.table import compressor, meet, tensor
from tests.sync.digits import data, network


def train(
    strategy: str,
    steps: int = 12,
    workers: int = 2,
    make: Any = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    batch: int = 16,
    seed: int = 0,
    probe: Any = lambda model, optimizer: None,
) -> tuple[list[torch.Tensor], list[float], float, list[Any]]:
    """Digits on virtual workers: all workers' parameters, worker 0's bytes of payload step by step, its accuracy, and
    what the probe saw after every step."""
    sent: list[float] = []
    seen: list[Any] = []
    right: list[float] = []

    def body() -> torch.Tensor:
        images, labels, test_images, test_labels = data()
        mine = torch.arange(laconic.rank(), len(labels), laconic.size())
        draw = torch.Generator().manual_seed(1000 * seed + laconic.rank())
        model: Any = network(seed)
        model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
        for _ in range(steps):
            before = connect().ledger.sent_bytes(Kind.PAYLOAD)
            chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if laconic.rank() == 0:
                sent.append(connect().ledger.sent_bytes(Kind.PAYLOAD) - before)
                seen.append(probe(model, optimizer))
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        if laconic.rank() == 0:
            with torch.no_grad():
                right.append(100 * float((model(test_images).argmax(1) == test_labels).float().mean()))
        return flat

    out = laconic.simulate(body, workers)
    return out.results, sent, right[0], seen


# ---------------------------------------------------------------------------------------------- DGC


@pytest.mark.long
@pytest.mark.technique("dgc", check=1)
def test_dgc_that_sends_everything_is_momentum_sgd_or_plain_sgd() -> None:
    whole, momentum = train("dgc(ratio=1, masking=false)")[0], train("bsp")[0]
    torch.testing.assert_close(whole[0], momentum[0], rtol=1e-5, atol=1e-6)
    masked = train("dgc(ratio=1)")[0]
    plain = train("bsp", make=lambda p: torch.optim.SGD(p, lr=0.1))[0]
    torch.testing.assert_close(masked[0], plain[0], rtol=1e-5, atol=1e-6)


@pytest.mark.technique("dgc", check=1)
def test_dgc_without_momentum_is_topk_with_memory() -> None:
    dgc, topk = compressor("dgc(ratio=0.05)"), compressor("topk(0.05)+ef")
    states = [[made.init(_spec()) for _ in range(3)] for made in (dgc, topk)]
    for step in range(10):
        inputs = [tensor("heavy", seed=10 * step + rank) for rank in range(3)]
        a, b = (meet(made, inputs, s, step) for made, s in zip((dgc, topk), states, strict=True))
        assert torch.equal(a[0].result, b[0].result)
        states = [[o.state for o in outcomes] for outcomes in (a, b)]


def _spec() -> Any:
    from tests.compression.table import spec_of

    return spec_of(tensor("heavy"))


@pytest.mark.technique("dgc", check=2)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=40, unique=True))
def test_gaps_lose_nothing_and_take_six_bytes(places: list[int]) -> None:
    at = torch.tensor(sorted(places))
    values = torch.arange(1.0, len(places) + 1)
    payload = pack(*runs.gaps(at, values))
    found, decoded = runs.read(payload)
    assert torch.equal(found[decoded != 0], at) and torch.equal(decoded[decoded != 0], values)
    longest = max(int(d) for d in torch.diff(at, prepend=torch.tensor([-1]))) - 1
    if longest <= 0xFFFF:
        assert payload.numel() == 6 * len(places)


@pytest.mark.technique("dgc", check=3)
@pytest.mark.long
def test_dgc_is_within_a_point_of_momentum_sgd_with_fifty_times_fewer_bytes() -> None:
    """In the mean over five seeds: a single one is up to two points away in either direction."""
    make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    accuracies = {"bsp": 0.0, "dgc(ratio=0.005, warmup=60)": 0.0}
    for strategy in accuracies:
        for seed in range(5):
            _, sent, right, _ = train(strategy, 600, 4, make, seed=seed)
            accuracies[strategy] += right / 5
            late = sum(sent[100:])
            if strategy == "bsp":
                dense = late
    assert accuracies["dgc(ratio=0.005, warmup=60)"] >= accuracies["bsp"] - 1
    assert dense / late >= 50


def test_momentum_is_given_back_and_schedulers_are_heard() -> None:
    def body() -> list[float]:
        model: Any = nn.Linear(8, 3)
        user = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, user, "dgc")
        held = [user.param_groups[0]["momentum"]]
        user.param_groups[0]["momentum"] = 0.8
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        held.append(user.param_groups[0]["momentum"])
        laconic.undistribute(model, optimizer)
        return [*held, user.param_groups[0]["momentum"]]

    assert laconic.simulate(body, 2).results[0] == [0.0, 0.0, 0.8]


# ---------------------------------------------------------------------------------------------- 1-bit Adam

STAGES = "bsp until step {}, then frozen_adam / flat+scaled_sign+two_hop(memory=true)+ef / allreduce / sequential"


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003)


@pytest.mark.technique("one_bit_adam", check=1)
def test_a_warm_up_of_all_steps_is_adam() -> None:
    assert torch.equal(train(STAGES.format(12), make=adam)[0][0], train("bsp", make=adam)[0][0])


@pytest.mark.technique("one_bit_adam", check=2)
@pytest.mark.parametrize("workers", [2, 4])
def test_second_stage_sends_one_bit_each_way(workers: int) -> None:
    parameters, sent, _, _ = train(STAGES.format(5), 8, workers, adam)
    n = parameters[0].numel()
    part = -(-n // (8 * workers))  # bytes of one owner's bits
    assert sent[-1] == 2 * part * (workers - 1) + 8 * (workers - 1)


@pytest.mark.long
@pytest.mark.technique("one_bit_adam", check=3)
def test_momenta_agree_and_variances_stand_still() -> None:
    def state(model: Any, optimizer: Any) -> list[torch.Tensor]:
        moments = [optimizer.state[p] for p in model.parameters()]
        return [torch.cat([m[key].reshape(-1).clone() for m in moments]) for key in ("exp_avg", "exp_avg_sq")]

    parameters, _, _, seen = train(STAGES.format(6), 14, 3, adam, probe=state)
    assert all(torch.equal(p, parameters[0]) for p in parameters), "equal momenta and variances make equal steps"
    assert all(torch.equal(variance, seen[5][1]) for _, variance in seen[6:])
    assert not torch.equal(seen[7][0], seen[8][0])


def test_frozen_adam_needs_a_state_to_go_on_from() -> None:
    with pytest.raises(ContractError, match="until step"):
        train("frozen_adam", make=adam)


@pytest.mark.long
def test_one_bit_adam_trains() -> None:
    one_bit, plain = (train(s, 200, 4, adam)[2] for s in (STAGES.format(40), "bsp"))
    assert one_bit >= plain - 2


def test_flat_joins_the_tensors_of_a_message() -> None:
    """One scale for all: the bytes of one tensor, and not a scale more."""
    _, apart, _, _ = train("scaled_sign+ef / sequential", 3)
    parameters, joint, _, _ = train("flat+scaled_sign+ef / sequential", 3)
    assert joint[-1] == -(-parameters[0].numel() // 8) + 4
    assert apart[-1] > joint[-1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_sent_of_large_tensors_too(bad: float) -> None:
    """Where the threshold is an estimate, which no comparison with NaN passes."""
    x = torch.randn(70_000, generator=torch.Generator().manual_seed(0))
    x[123] = bad
    (outcome,) = meet(compressor("dgc(0.001)"), [x])
    assert not outcome.result[123].isfinite()
    assert bool(outcome.state["sum"].isfinite().all())


@pytest.mark.parametrize("gap", [65534, 65535, 65536, 65537, 131071, 131072, 131073])
def test_a_gap_at_the_edge_of_16_bits_takes_no_more_entries_than_it_needs(gap: int) -> None:
    found, decoded = runs.read(pack(*runs.gaps(torch.tensor([5, 6 + gap]), torch.tensor([2.0, 3.0]))))
    assert found[decoded != 0].tolist() == [5, 6 + gap] and decoded[decoded != 0].tolist() == [2.0, 3.0]
    assert len(found) == 2 + gap // 65536
