"""Adaptive parameter freezing, and its forms with chance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.federated.client_memory import InMemory
from laconic.federated.freezing import Freezing
from laconic.federated.partition import iid
from laconic.federated.population import Population
from laconic.federated.rules.apf import APFPlusPlus
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.language.word import FederatedWord
from tests.data import fixture
from tests.federated.digits import digits


@pytest.mark.evidence("apf", recording="apf.npz")
@pytest.mark.parametrize("case", ["c0", "c1"])
def test_masks_and_averages_are_those_of_the_authors_program(case: str) -> None:
    data = fixture("apf.npz")
    known = Freezing.begin(torch.tensor(data[f"{case}_x0"]), float(data[f"{case}_threshold0"]))
    for number, increment in enumerate(torch.tensor(data[f"{case}_increment"])):
        active = known.active
        assert int(active.sum()) == data[f"{case}_sent_count"][number]
        known = known.taken((known.value + increment)[active]).judged(float(data[f"{case}_ema"]))
        for name, value in {
            "x": known.value,
            "E": -known.drift,
            "A": known.wander,
            "length": known.length,
            "unfreeze": known.until,
            "active": known.active,
        }.items():
            np.testing.assert_allclose(value.numpy(), data[f"{case}_{name}"][number], rtol=1e-4, atol=1e-6)
        assert known.threshold == pytest.approx(float(data[f"{case}_threshold"][number]))


def masks(text: str, clients: int, rounds: int) -> tuple[list[list[Tensor]], InMemory, Tensor]:
    """Return every client's mask of every round, what clients keep, and the model."""
    seen: list[list[Tensor]] = [[] for _ in range(rounds)]
    made = FederatedStrategy.parse(text)

    @dataclass(frozen=True)
    class Watched(type(made.rule)):  # type: ignore[misc]  # the rule, with its masks noted
        def train(self, local, received, memory):  # type: ignore[no-untyped-def]
            sent = super().train(local, received, memory)
            seen[Freezing.of(memory).rounds].append(Freezing.of(memory).active)
            return sent

    arguments = dict(FederatedWord.of(made.rule).arguments)
    kept = InMemory()
    strategy = FederatedStrategy(Watched(**arguments), made.compression, made.structure)
    outcome = simulate(digits(8), Population(iid(400, clients)), strategy, rounds, rate=0.3, client_memory=kept)
    return seen, kept, outcome.parameters


@pytest.mark.technique("apf", check=1)
@pytest.mark.technique("apf_sharp", check=2)
@pytest.mark.parametrize(
    "text",
    [
        "apf(3, decay=0.8, threshold=0.3)",
        "apf(3, every=2, decay=0.8, threshold=0.3)",
        "apf_sharp(3)",
        "apf_pp(3, growth=0.05, longer=0.5)",
    ],
)
def test_all_clients_hold_the_same_mask_and_resting_scalars_the_same_bits(text: str) -> None:
    seen, kept, _ = masks(text, 3, 12)
    assert all(len(each) == 3 and torch.equal(each[0], each[1]) and torch.equal(each[0], each[2]) for each in seen)
    assert any(not each[0].all() for each in seen)
    values = [Freezing.of({name.removeprefix("rule/"): x for name, x in kept.load(c).items()}).value for c in range(3)]
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


def test_a_resting_scalar_does_not_change() -> None:
    _, _, before = masks("apf(3, decay=0.8, threshold=0.3)", 3, 10)
    seen, _, after = masks("apf(3, decay=0.8, threshold=0.3)", 3, 11)
    resting = ~seen[10][0]
    assert 0.1 < resting.float().mean() < 0.95
    assert torch.equal(before[resting], after[resting]) and (before != after)[~resting].float().mean() > 0.3


@pytest.mark.technique("apf", check=2)
def test_swinging_scalars_rest_ever_longer_and_drifting_ones_never() -> None:
    """Scalar 0 alternates, 1 drifts, 2 alternates sixty times and then drifts: its rests grow and are then halved."""
    known = Freezing.begin(torch.zeros(3), 0.05)
    rests: list[list[int]] = [[], [], []]
    for _ in range(2000):
        active, times = known.active, [len(each) for each in rests]
        swings = [-1.0 if number % 2 else 1.0 for number in times]
        change = torch.tensor([swings[0], 1.0, swings[2] if times[2] < 60 else 1.0])
        known = known.taken((known.value + change)[active]).judged(0.99)
        for scalar in active.nonzero().flatten().tolist():
            rests[scalar].append(int(known.length[scalar]))
    assert rests[1] == [0] * 2000
    last = max(place for place, length in enumerate(rests[0]) if not length)  # the averages need some rounds
    stable = rests[0][last + 1 :]
    assert stable == list(range(1, len(stable) + 1)) and len(stable) > 20
    assert max(rests[2]) > 20 and rests[2][-1] == 0
    for before, after in pairwise(rests[2]):
        assert after in (before // 2, before + 1)


@pytest.mark.technique("apf_sharp", check=1)
def test_without_chance_apf_sharp_is_apf_and_with_it_half_of_all_rest() -> None:
    plain, sharp = (masks(text, 2, 8) for text in ("apf(2)", "apf_sharp(2, probability=0)"))
    assert torch.equal(plain[2], sharp[2])
    shares = [float(each[0].float().mean()) for each in masks("apf_sharp(2, threshold=0)", 2, 60)[0][1:]]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.01)


@pytest.mark.technique("apf_pp", check=1)
def test_the_chances_of_apf_pp_grow_and_without_growth_it_is_apf() -> None:
    chances = [APFPlusPlus().chance(check) for check in range(0, 5000, 50)]
    assert chances == sorted(chances) and chances[0] == (0.0, 1) and chances[-1][0] == 0.9
    lengths = [longest for _, longest in chances]
    assert lengths == sorted(lengths) and lengths[-1] > 100
    plain, still = (masks(text, 2, 8) for text in ("apf(2)", "apf_pp(2, growth=0, longer=0)"))
    assert torch.equal(plain[2], still[2])


@pytest.mark.technique("apf_pp", check=2)
def test_nothing_rests_for_longer_than_was_drawn() -> None:
    """Beyond its period by APF, so that every scalar is sent again and again."""
    rule = APFPlusPlus(growth=0.1, longer=0.5)
    known, rested = Freezing.begin(torch.zeros(50), 0.05), torch.zeros(50, dtype=torch.int64)
    draw = torch.Generator().manual_seed(0)
    for _ in range(100):
        active = known.active
        known = known.taken((known.value + torch.randn(50, generator=draw))[active]).judged(0.9, rule._longer())
        longest = rule.chance(known.checks)[1]
        rested = torch.where(known.active, 0, rested + 1)
        assert (rested <= known.length + longest).all()
    assert known.active.any() and longest > 40


def test_clients_that_miss_rounds_are_refused() -> None:
    with pytest.raises(StrategyError, match="write apf"):
        simulate(digits(8), Population(iid(400, 10)), "apf(clients=5)", 1, rate=0.1)


def trained(text: str, hidden: int, rounds: int, rate: float, seed: int) -> tuple[np.ndarray, float]:
    """Return the bytes that five clients with even data have sent and received after each round, and the accuracy."""
    clients = Population(iid(1437, 5, seed))
    steps = simulate(digits(hidden), clients, text, rounds, rate=rate, seed=seed, evaluate_every=rounds).steps
    return np.array([step.up_bytes + step.down_bytes for step in steps]), steps[-1].scores["accuracy"]


@pytest.mark.long
@pytest.mark.technique("apf_sharp", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chance_saves_a_quarter_of_the_bytes_of_a_wide_model(seed: int) -> None:
    """Of 256 hidden units, at most a point of accuracy below APF's."""
    (plain, right), (sharp, nearly) = (
        trained(f"{rule}(5, batch=100)", 256, 150, 1.0, seed) for rule in ("apf", "apf_sharp")
    )
    assert sharp[-1] < 0.75 * plain[-1]
    assert right > 0.95 and nearly >= right - 0.01


@pytest.mark.long
@pytest.mark.technique("apf_pp", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_growing_chances_save_more_in_the_second_half_of_training(seed: int) -> None:
    """Of a thousand rounds, at most a point and a half of accuracy below FedAvg's."""
    (_, right), (sharp, _), (growing, nearly) = (
        trained(f"{rule}(5, batch=0)", 32, 1000, 0.5, seed) for rule in ("fedavg", "apf_sharp", "apf_pp")
    )
    assert growing[-1] - growing[499] < sharp[-1] - sharp[499]
    assert right > 0.95 and nearly >= right - 0.015
