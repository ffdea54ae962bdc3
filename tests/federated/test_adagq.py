"""Bits with which all clients take equally long, and whose mean follows training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from laconic.compression.stochastic_levels import QSGD
from laconic.errors import LaconicError, StrategyError
from laconic.federated.layout import Layout
from laconic.federated.messages import Wire
from laconic.federated.pace import equal_times
from laconic.federated.partition import iid
from laconic.federated.population import Population
from laconic.federated.rule import Server
from laconic.federated.rules.adagq import AdaGQ, Tried, assigned_bits, levels
from laconic.federated.simulate import simulate
from laconic.values.tensor_spec import TensorSpec
from tests.federated.digits import digits
from tests.federated.racing import seconds_to


@pytest.mark.technique("adagq", check=1)
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_client_sends_is_unbiased_with_bounded_variance(bits: int, seed: int) -> None:
    """Ten thousand draws of one vector, as ten thousand buckets of a message."""
    p, draws = 37, 10_000
    compressor = AdaGQ().compressor(Server(torch.zeros(1), kept={"bits": [bits]}), 0, QSGD(bucket=p))
    wire = Wire(compressor, Layout((TensorSpec("w", (p * draws,), torch.float32),)), seed)
    vector = torch.randn(p, generator=torch.Generator().manual_seed(seed))
    message, _ = wire.encode({"change": vector.repeat(draws)}, {}, 0, 0, {})
    assert message.nbytes == -(-p * draws * bits // 8) + 4 * draws
    found = wire.decode(message, 0, 0)["change"].view(draws, p).double()
    apart = (found.mean(0) - vector) / (found.std(0) / draws**0.5).clamp(min=1e-9)
    assert (
        float(apart.abs().mul(found.std(0) > 1e-6).max()) < 4
    )  # of 37 entries: three standard errors for each of most
    assert float((apart.abs() <= 3).double().mean()) > 0.95
    s, energy = levels(bits), float(vector.square().sum())
    assert float((found - vector).square().sum(1).mean()) <= min(p / s**2, math.sqrt(p) / s) * energy


@pytest.mark.technique("adagq", check=2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("total", [35, 64, 77, 120])
def test_bits_make_times_equal_within_a_bit_and_have_the_mean(seed: int, total: int) -> None:
    draw = np.random.default_rng(seed)
    fixed, each = draw.uniform(0, 1, 16), 10 ** draw.uniform(-1, 0, 16)
    bits = assigned_bits(fixed, each, total / 16)
    assert bits.sum() == total and bits.min() >= 2 and bits.max() <= 8
    between = (bits > 2) & (bits < 8)
    times, level = fixed + each * bits, (fixed + each * equal_times(fixed, each, 2, 8, total / 16))[between]
    assert between.any() and np.ptp(level) < 1e-9
    common = level[0]
    assert (np.abs(times - common)[between] <= each[between] + 1e-9).all()
    assert (times[bits == 8] <= common + each[bits == 8] + 1e-9).all()
    assert (times[bits == 2] >= common - each[bits == 2] - 1e-9).all()


@pytest.mark.parametrize("seed", range(4))
def test_shares_of_equal_times_make_the_longest_time_as_short_as_it_can_be(seed: int) -> None:
    """No exchange between two clients makes it shorter, and the mean is met, with unequal bounds and weights."""
    draw = np.random.default_rng(seed)
    fixed, each, weights = draw.uniform(0, 2, 9), 10 ** draw.uniform(-1, 1, 9), draw.uniform(0.5, 2, 9)
    low, high = draw.uniform(0, 1, 9), draw.uniform(2, 5, 9)
    weights /= weights.sum()
    mean = float(weights @ (0.6 * low + 0.4 * high))
    shares = equal_times(fixed, each, low, high, mean, weights)
    assert weights @ shares == pytest.approx(mean) and (shares >= low).all() and (shares <= high).all()
    times = fixed + each * shares
    longest = times[shares > low].max()
    assert (times[shares < high] >= longest - 1e-9).all()
    with pytest.raises(LaconicError, match="do not have the mean"):
        equal_times(fixed, each, low, high, 6.0, weights)


@pytest.mark.parametrize("seed", [0, 1])
def test_clients_take_as_long_as_their_bits_say(seed: int) -> None:
    clients = Population(iid(1437, 8, seed), 1e-4, 10 ** np.linspace(4, 5, 8), 1e6)
    outcome = simulate(digits(), clients, "adagq(8, batch=20, every=100) / qsgd", 2, rate=0.1, seed=seed)
    bits, (fixed, each) = outcome.server.kept["bits"], outcome.server.kept["times"]
    assert bits.sum() == 32 and bits[0] < bits[-1]
    assert outcome.seconds == pytest.approx(2 * (fixed + each * bits).max(), rel=1e-3)


def test_the_mean_goes_on_where_it_was_better_and_turns_where_not() -> None:
    first = Tried(4.0).next(2.0, 1.0, 10.0)
    assert (first.mean, first.direction) == (4.0, -1)
    second = first.next(1.0, 0.5, 20.0)  # halved in 10 s, faster than never; the norm has halved: a whole bit
    assert second.mean == 3.0 and second.speed == pytest.approx(math.log(2) / 10)
    better = second.next(0.25, 0.5, 30.0)
    assert better.mean == 2.75 and better.direction == -1
    worse = second.next(0.9, 0.4, 30.0)
    assert worse.direction == 1 and worse.mean == pytest.approx(3 + math.log2(1.25))
    assert Tried(2.0, -1, 1.0, 1.0).next(0.5, 0.5, 1.0).mean == 2.0


def test_a_sentence_without_levels_is_refused() -> None:
    for compression in ("none", "int8", "qsgd(coding=elias)"):
        with pytest.raises(StrategyError, match="write adagq / qsgd"):
            simulate(digits(), Population(iid(100, 4)), f"adagq(4) / {compression}", 1, rate=0.1)


@pytest.mark.long
@pytest.mark.technique("adagq", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_time_is_saved_on_unequal_links(seed: int) -> None:
    """Each with the best of the same rates, and common levels with the best of three: 127 in place of 256, which would
    take ten bits, where eight are as good."""
    links = np.random.default_rng(seed).permutation(10 ** np.linspace(4, 5, 16))
    clients = Population(iid(1437, 16, seed), 1e-4, links, 1e8)
    texts = [f"fedavg(16, batch=20) / qsgd({s})" for s in (4, 16, 127)]
    common, adapted = (
        seconds_to(0.9, digits(), clients, each, (0.3, 0.1), seed, 60)
        for each in (texts, ["adagq(16, batch=20) / qsgd"])
    )
    assert adapted < 0.75 * common < np.inf
