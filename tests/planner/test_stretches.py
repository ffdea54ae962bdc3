"""Rules that change when they exchange: their prices over a run are the virtual engine's bytes and times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch

import laconic
from laconic.frontier.clock import Clock, Traffic
from laconic.frontier.shapes import Shape
from laconic.network.network_tree import Network
from laconic.planner.advise import advise
from laconic.planner.deployment import Deployment
from laconic.planner.phases import by_shares
from laconic.planner.price import Pricer
from laconic.profile.emulate import emulated
from laconic.real.connect import connect
from laconic.strategy import Strategy
from laconic.sync.frozen_adam import FreezingAdam, LocalFrozenAdam
from laconic.sync.local import LocalSGD
from laconic.virtual.compute import Compute
from tests.planner.test_price import PROFILE

SIGNS = "flat+scaled_sign+two_hop(memory=true)+ef"
FREEZING = f"freezing_adam(kappa=4) / {SIGNS}"
LOCAL = f"bsp until step 2, then local_frozen_adam(doubling=8, longest=4) / {SIGNS}"
ZERO_ONE_ADAM = f"{FREEZING} until step 20, then local_frozen_adam(doubling=12, longest=4) / {SIGNS}"
ONE_BIT_LAMB = f"bsp until step 6, then frozen_lamb / {SIGNS}"
GROWING = "local(2, growing=true)"
NETWORK = Network.flat(3, 2e7, 1e-4)
Parameters = Iterable[torch.nn.Parameter]


def adam(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def lamb(parameters: Parameters) -> torch.optim.Optimizer:
    return laconic.optim.LAMB(parameters, 0.01, bias_correction=False, ratio_bounds=(0.01, 10))


def virtual(text: str, steps: int, made: Callable[[Parameters], torch.optim.Optimizer]) -> tuple[float, float]:
    """The seconds and sent bytes of a step of the virtual engine, in the mean over a whole run."""

    def train() -> tuple[float, float]:
        model = emulated(PROFILE, 0.0)
        optimizer = made(model.parameters())
        model, optimizer = laconic.distribute(model, optimizer, text)
        begun, sent = connect().clock_seconds(), connect().ledger.sent_bytes()
        for _ in range(steps):
            model(1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return connect().clock_seconds() - begun, connect().ledger.sent_bytes() - sent

    ran = laconic.simulate(train, 3, NETWORK, Compute.from_profile(PROFILE)).results
    return ran[0][0] / steps, sum(sent for _, sent in ran) / len(ran) / steps


@pytest.mark.parametrize(
    ("text", "steps", "made"),
    [(FREEZING, 30, adam), (LOCAL, 34, adam), (ZERO_ONE_ADAM, 56, adam), (ONE_BIT_LAMB, 30, lamb), (GROWING, 42, adam)],
    ids=["variances ever more rarely", "rounds ever longer", "0/1 Adam", "1-bit LAMB", "growing gaps"],
)
def test_the_price_of_a_run_is_what_the_virtual_engine_counts(
    text: str, steps: int, made: Callable[[Parameters], torch.optim.Optimizer]
) -> None:
    found = Pricer(Deployment(PROFILE, NETWORK, 3, steps=steps)).price(text)
    seconds, sent = virtual(text, steps, made)
    assert found.seconds == pytest.approx(seconds, rel=0.01)
    assert found.sent_bytes == pytest.approx(sent, rel=0.02)


@pytest.mark.parametrize("kappa", [1, 3, 16])
@pytest.mark.parametrize("steps", [1, 5, 16, 17, 100, 3000])
def test_steps_that_update_variances_are_counted(kappa: int, steps: int) -> None:
    rule = FreezingAdam(kappa)
    counted = sum(rule.updates_variances(step) for step in range(1, steps + 1))
    assert rule.exact_steps(steps) == counted
    stretches = rule.stretches(steps)
    assert sum(one.share for one in stretches) == pytest.approx(1)
    assert sum(one.share for one in stretches if one.exact) == pytest.approx(counted / steps)


@pytest.mark.parametrize(("doubling", "longest"), [(1, 1), (8, 4), (16, 16), (100, 12), (10**6, 16)])
@pytest.mark.parametrize("steps", [1, 48, 1000])
def test_rounds_are_counted(doubling: int, longest: int, steps: int) -> None:
    """But for those that no stretch holds as a whole."""
    rule = LocalFrozenAdam(doubling, longest)
    counted = sum(rule.ends_round(step) for step in range(1, steps + 1))
    stretches = rule.stretches(steps)
    assert sum(one.share for one in stretches) == pytest.approx(1)
    assert sum(one.share / one.cadence.period for one in stretches) * steps == pytest.approx(
        counted, abs=len(stretches)
    )


@pytest.mark.parametrize("period", [1, 3, 8])
@pytest.mark.parametrize("steps", [1, 3, 24, 25, 1000, 10**6])
def test_growing_gaps_are_counted(period: int, steps: int) -> None:
    stretches = LocalSGD(period, growing=True).stretches(steps)
    rounds = (math.isqrt(1 + 8 * (steps // period)) - 1) // 2  # 1 + 2 + … + rounds is at most the periods
    assert sum(one.share for one in stretches) == pytest.approx(1)
    found = sum(one.share / one.cadence.period for one in stretches) * steps
    assert found == pytest.approx(rounds, rel=0.01, abs=2), "but for what follows the last, and for whole periods"
    assert len(stretches) < 15 and not LocalSGD(period, growing=True).stretches(None)


def test_in_a_run_of_unknown_length_a_rule_is_what_it_comes_to() -> None:
    pricer = Pricer(Deployment(PROFILE, NETWORK, 3))
    assert pricer.price("zero_one_adam").sent_bytes == pytest.approx(
        pricer.price("zero_one_adam", 10**8).sent_bytes, rel=0.01
    )
    assert pricer.price(FREEZING).sent_bytes == pytest.approx(pricer.price(FREEZING, 10**8).sent_bytes, rel=0.01)
    assert pricer.price(FREEZING).sent_bytes < 0.2 * pricer.price(FREEZING, 30).sent_bytes


@pytest.mark.parametrize("text", ["zero_one_adam", "one_bit_lamb", FREEZING])
def test_the_frontier_prices_them_over_the_training(text: str) -> None:
    clock, strategy = Clock(Shape(10e6, 8)), Strategy.parse(text)
    short, long = (clock.step(strategy, Traffic(0.0, 1, steps), 1e8) for steps in (1200, 12_000))
    assert short.priced and long.priced
    assert short.seconds > long.seconds and short.sent_bytes > long.sent_bytes


def test_a_run_of_another_length_is_another_training() -> None:
    """What changes after a number of steps has other shares there."""
    short, long = (
        Strategy.parse("zero_one_adam"),
        Strategy.parse(str(Strategy.parse("zero_one_adam")).replace("1000", "2000")),
    )
    assert by_shares(short, 3000) == by_shares(short, 3000) != by_shares(long, 6000)
    dense, longer = (
        Strategy.parse("one_bit_lamb"),
        Strategy.parse(str(Strategy.parse("one_bit_lamb")).replace("1000", "2000")),
    )
    assert by_shares(dense, 3000) == by_shares(longer, 6000)


@pytest.mark.parametrize("steps", [None, 3000])
def test_the_plan_says_how_it_weighs_them(steps: int | None) -> None:
    found = advise(replace(Deployment(PROFILE, NETWORK, 3), steps=steps), "a model", "20mbit", consider=[FREEZING])
    (note,) = (note for note in found.notes if "change when they exchange" in note)
    assert ("--run-steps N" in note) is (steps is None)
    assert any(option.strategy == str(Strategy.parse(FREEZING)) for option in found.options)
