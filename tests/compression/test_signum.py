"""Signum: signSGD's vote on local momenta, which are the optimizer's own, taken over."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic.compression.signs import SignSGD
from laconic.compression.signum import Signum
from laconic.errors import StrategyError
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.sync import digits


@pytest.mark.long
@pytest.mark.technique("signum", check=1)
@given(kind=st.sampled_from(["normal", "heavy", "sparse", "zero"]), workers=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_without_momentum_every_vote_is_that_of_sign_sgd(kind: str, workers: int, seed: int) -> None:
    made, states = Signum(beta=0.0), None
    for step in range(6):
        inputs = [tensor(kind, seed=seed + 10 * step + rank) * (-1) ** rank for rank in range(workers)]
        ours = meet(made, inputs, states, step)
        states = [outcome.state for outcome in ours]
        for one, other in zip(ours, meet(SignSGD(), inputs, step=step), strict=True):
            assert torch.equal(one.result, other.result)


@pytest.mark.long
@pytest.mark.technique("signum", check=1)
def test_without_momentum_training_is_that_of_sign_sgd_to_the_bit() -> None:
    """With weight decay; and where the optimizer has momentum of its own, it is given none."""

    def make(momentum: float) -> digits.Make:
        return lambda p: torch.optim.SGD(p, lr=0.003, momentum=momentum, weight_decay=1e-3)

    signs = digits.trained("sign_sgd", 10, 16, make(0.0)).parameters
    for momentum in (0.0, 0.9):
        assert torch.equal(digits.trained("signum(beta=0)", 10, 16, make(momentum)).parameters, signs)
    assert not torch.equal(digits.trained("signum", 10, 16, make(0.0)).parameters, signs)


def bytes_each_way(n: int, workers: int) -> tuple[set[int], int]:
    """What workers send, and what each receives: the votes of all owners."""
    messages: list[list[tuple[str, Tensor]]] = []
    meet(Signum(), [tensor("normal", (n,), rank) for rank in range(workers)], payloads=messages)
    assert all([hop for hop, _ in sent] == ["Scatter", "Gather"] for sent in messages)
    return {sent[0][1].nbytes for sent in messages}, sum(sent[1][1].nbytes for sent in messages)


@pytest.mark.technique("signum", check=2)
@pytest.mark.parametrize(
    ("n", "workers", "expected"), [(1, 1, 1), (17, 1, 3), (32, 2, 4), (120, 5, 15), (115, 5, 15), (13, 3, 3)]
)
def test_bytes_each_way_by_hand(n: int, workers: int, expected: int) -> None:
    assert bytes_each_way(n, workers) == ({expected}, expected)


@pytest.mark.long
@pytest.mark.technique("signum", check=2)
@given(eights=st.integers(1, 200), rest=st.integers(0, 7), workers=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_a_bit_a_value_in_each_direction(eights: int, rest: int, workers: int) -> None:
    """Exactly, where workers divide the bytes; where they do not, parts of whole bytes are filled up."""
    for n, expected in (
        (8 * eights * workers - rest, math.ceil((8 * eights * workers - rest) / 8)),
        (eights, workers * math.ceil(eights / (8 * workers))),
    ):
        assert bytes_each_way(n, workers) == ({expected}, expected)


@pytest.mark.technique("signum", check=3)
@pytest.mark.long
def test_signum_reaches_the_loss_of_adam() -> None:
    """At the best of the same rates, each falling to zero over the run."""
    steps, rates = 100, (0.01, 0.03, 0.1)

    def best(strategy: str, make: Any) -> float:
        def loss(rate: float, seed: int) -> float:
            def decay(optimizer: Any, step: int) -> None:
                optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)

            return digits.trained(strategy, steps, 16, make(rate), seed=seed, before_step=decay).loss

        return min(sum(loss(rate, seed) for seed in range(2)) / 2 for rate in rates)

    adam = best("bsp", lambda rate: lambda p: torch.optim.Adam(p, lr=rate))
    assert adam < 0.2
    assert best("signum", lambda rate: digits.sgd(rate, 0.9)) <= 1.05 * adam


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_each_votes_with_its_moving_average(beta: float) -> None:
    made, states, averages = Signum(beta=beta), None, [torch.zeros(24, 20) for _ in range(3)]
    for step in range(8):
        inputs = [tensor("heavy", seed=10 * step + rank) for rank in range(3)]
        averages = [beta * m + (1 - beta) * x for m, x in zip(averages, inputs, strict=True)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        votes = sum((torch.where(m >= 0, 1, -1) for m in averages), torch.zeros(24, 20, dtype=torch.int64))
        assert all(torch.equal(outcome.result, votes.sign().float()) for outcome in outcomes)
        for state, average in zip(states, averages, strict=True):
            torch.testing.assert_close(state["momentum"], average, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("own", "expected"), [(0.8, 0.8), (0.0, 0.9)])
def test_the_momentum_is_the_optimizers_and_is_given_back(own: float, expected: float) -> None:
    """What the memory holds after one step is a share 1 - beta of the gradient, which is all ones."""

    def body() -> tuple[float, float, float]:
        model: Any = nn.Linear(8, 3, bias=False)
        user = torch.optim.SGD(model.parameters(), lr=0.1, momentum=own)
        model, optimizer = laconic.distribute(model, user, "signum")
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        (state,) = optimizer.session.partitions[0].tiers[0].memory.values()
        during = user.param_groups[0]["momentum"]
        laconic.undistribute(model, optimizer)
        return float(state["momentum"].mean()), during, user.param_groups[0]["momentum"]

    held, during, after = laconic.simulate(body, 2).results[0]
    assert held == pytest.approx(1 - expected) and during == 0 and after == own


def test_what_is_not_finite_is_not_remembered() -> None:
    x = tensor("normal", (40,))
    x[3], x[7] = math.nan, math.inf
    (outcome,) = meet(Signum(), [x])
    assert outcome.result[3] == -1 and outcome.result[7] == 1
    assert bool(outcome.state["momentum"].isfinite().all())


def test_a_memory_around_it_is_refused() -> None:
    with pytest.raises(StrategyError, match="write ef_signsgd"):
        compressor("signum+ef")
    assert Signum().payload_bytes(spec_of(tensor("normal")), 1) == SignSGD().payload_bytes(spec_of(tensor("normal")), 1)
