"""Prices in closed form are the virtual engine's times: the same messages, without running them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from laconic.cost.closed_form import Traffic, iterate
from laconic.cost.collectives import TransferTimes
from laconic.network.network_tree import Level, Network
from laconic.planner.advise import advise
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.planner.values import PlanError
from laconic.profile.emulate import emulated
from laconic.real.connect import connect
from laconic.values.profile import CodecTimes, ModelTimes, Profile, Seconds, TensorTime
from laconic.virtual.compute import Compute

COMPUTING = 0.05


def profile_of(elements: list[int], shares: list[float], codecs: tuple[CodecTimes, ...] = ()) -> Profile:
    whole = sum(shares)
    tensors = tuple(
        TensorTime(f"layer{i}.weight", (max(1, n // 64), 64), "float32", COMPUTING * share / whole)
        for i, (n, share) in enumerate(zip(elements, shares, strict=True))
    )
    model = ModelTimes(tensors, Seconds(COMPUTING / 2), Seconds(COMPUTING), Seconds(COMPUTING / 20))
    return Profile(model, codecs=codecs)


PROFILE = profile_of([64, 30_000, 4_000, 12_000, 900, 40_000], [1, 5, 2, 3, 1, 4])


def virtual_seconds(
    profile: Profile,
    strategy: str,
    network: Network,
    workers: int,
    period: int = 1,
    made: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> float:
    """A step of the virtual engine, in the mean over a period, once plans are made."""

    def train() -> list[float]:
        model = emulated(profile, 0.0)
        optimizer: torch.optim.Optimizer = made(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        ends = []
        for _ in range(8 + period):
            model(1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(connect().clock_seconds())
        return ends

    ends = laconic.simulate(train, workers, network, Compute.from_profile(profile)).results[0]
    return (ends[-1] - ends[-1 - period]) / period


@pytest.mark.parametrize("rate", [1e7, 1e9])
@pytest.mark.parametrize(
    ("strategy", "period", "tolerance"),
    [
        ("bsp", 1, 0.001),
        ("bsp / wfbp(0)", 1, 0.03),
        ("bsp / wfbp(64KiB)", 1, 0.01),
        ("bsp / sequential", 1, 0.001),
        ("bsp / mg_wfbp", 1, 0.01),
        ("bsp / dear(64KiB)", 1, 0.05),
        ("bsp / cast_bf16", 1, 0.001),
        ("bsp / topk(0.01)+ef", 1, 0.01),
        ("bsp / terngrad", 1, 0.01),
        ("bsp / power_sgd(2)+ef", 1, 0.05),
        ("local(4)", 4, 0.001),
        ("local(1)", 1, 0.001),
        ("local(4) / scaled_sign+ef", 4, 0.01),
        ("slowmo(4)", 4, 0.001),
        ("accumulate(4)", 4, 0.001),
        ("overlap_local_sgd(4)", 4, 0.01),
        ("overlap_local_sgd(4) / power_sgd(2)", 4, 0.01),
        ("osp(share=1) / none / allreduce", 1, 0.01),
        ("osp(share=1) / cast_int8 / allreduce", 1, 0.01),
        ("osp(share=1) / power_sgd(2) / allreduce", 1, 0.01),
        ("osp(share=1, delay=2) / none / allreduce", 12, 0.01),
        ("osp(share=1, delay=2) / cast_int8 / allreduce", 12, 0.01),
    ],
)
def test_a_price_is_the_virtual_engines_time(strategy: str, period: int, tolerance: float, rate: float) -> None:
    network = Network.flat(4, rate, 1e-4)
    found = Pricer(Deployment(PROFILE, network, 4)).price(strategy)
    assert found.seconds == pytest.approx(virtual_seconds(PROFILE, strategy, network, 4, period), rel=tolerance)


@pytest.mark.parametrize("rate", [2e7, 1e9])
@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("latency_steps", [0.1, 0.24, 0.45])
def test_what_is_late_by_several_steps_is_limited_by_lanes_and_by_the_link(
    latency_steps: float, delay: int, rate: float
) -> None:
    """Of 0.6, 1.4 and 2.7 steps of latency."""
    step = PROFILE.model.seconds
    network, strategy = Network.flat(4, rate, latency_steps * step), f"osp(share=1, delay={delay}) / none / allreduce"
    found = Pricer(Deployment(PROFILE, network, 4)).price(strategy)
    assert found.seconds == pytest.approx(virtual_seconds(PROFILE, strategy, network, 4, 12), rel=0.02)


@pytest.mark.parametrize("rate", [1e7, 1e9])
def test_momenta_are_averaged_after_backward(rate: float) -> None:
    network, rule = Network.flat(4, rate, 1e-4), "frozen_adam / flat+scaled_sign+two_hop(true)+ef"
    found = Pricer(Deployment(PROFILE, network, 4)).price(rule)
    ran = virtual_seconds(PROFILE, f"bsp until step 2, then {rule}", network, 4, made=torch.optim.Adam)
    assert found.seconds == pytest.approx(ran, rel=0.01)


@pytest.mark.parametrize("rate", [3e6, 1e7, 1e9])
@pytest.mark.parametrize("overlap", [0, 1, 2, 5])
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_parts_in_flight_are_hidden_by_as_many_steps(fragments: int, overlap: int, rate: float) -> None:
    """Parts count as equal, which they are where all layers are; those that share a slow link take turns, so that two
    periods are one cycle."""
    profile, network = profile_of([20_480] * 6, [1] * 6), Network.flat(4, rate, 1e-4)
    strategy = f"streaming_diloco(8, fragments={fragments}, overlap={overlap})"
    found = Pricer(Deployment(profile, network, 4)).price(strategy)
    assert found.seconds == pytest.approx(virtual_seconds(profile, strategy, network, 4, 16), rel=0.01)


@pytest.mark.long
def test_encoding_and_decoding_are_in_the_price() -> None:
    codec = CodecTimes("topk+error_feedback", 1e-3, 2e-7, 5e-4, 1e-7)
    profile, network = replace(PROFILE, codecs=(codec,)), Network.flat(4, 1e9, 1e-4)
    found = Pricer(Deployment(profile, network, 4)).price("bsp / topk(0.01)+ef")
    elements = sum(tensor.numel for tensor in profile.model.tensors)
    count = len(profile.model.tensors)
    assert found.coding_seconds == pytest.approx(1.5e-3 * count + 3e-7 * elements)
    assert found.seconds == pytest.approx(virtual_seconds(profile, "bsp / topk(0.01)+ef", network, 4), rel=0.02)


@pytest.mark.long
def test_bytes_are_what_the_ledger_counts() -> None:
    for strategy in ("bsp", "bsp / cast_bf16", "bsp / topk(0.01)+ef", "bsp / scaled_sign+ef"):
        found = Pricer(Deployment(PROFILE, Network.flat(4, 1e9), 4)).price(strategy)

        def train(strategy: str = strategy) -> float:
            model = emulated(PROFILE, 0.0)
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = laconic.distribute(model, optimizer, strategy)
            before = connect().ledger.sent_bytes()
            model(1.0).backward()
            optimizer.step()
            return float(connect().ledger.sent_bytes() - before)

        sent = laconic.simulate(train, 4).results
        assert found.sent_bytes == pytest.approx(sum(sent) / 4, rel=0.01), strategy


def test_a_slow_worker_holds_up_everybody() -> None:
    network = Network.flat(4, 1e9, 1e-4)
    alike, unequal = (Pricer(Deployment(PROFILE, network, 4, s)).price("bsp") for s in ((1.0,), (1.0, 1.0, 1.0, 3.0)))
    assert unequal.seconds > 2.5 * alike.seconds


def test_whoever_does_not_wait_is_held_up_by_nobody() -> None:
    """One of four is nine times slower: synchronous workers all wait for it, bounded ones in the long run too."""
    deployment = Deployment(PROFILE, Network.flat(4, 1e12), 4, (1.0, 1.0, 1.0, 9.0))
    asp, ssp, bsp = (
        Pricer(deployment).price(s).seconds for s in ("asp / none / ps(4)", "ssp(3) / none / ps(4)", "bsp")
    )
    alone = PROFILE.model.seconds
    assert asp == pytest.approx(alone * 4 / (3 + 1 / 9), rel=0.01)
    assert ssp == pytest.approx(9 * alone, rel=0.01)
    assert bsp == pytest.approx(9 * alone, rel=0.01)
    full = Pricer(Deployment(PROFILE, Network.flat(4, 1e6), 4)).price("asp / none / ps").seconds
    spread = Pricer(Deployment(PROFILE, Network.flat(4, 1e6), 4)).price("asp / none / ps(4)").seconds
    assert full > 2 * spread, "one server's link is full"


def test_tiers_cross_the_slow_level_as_often_as_they_say() -> None:
    """Two sites of four: within each in every step, between them every eighth."""
    network = Network(8, (Level(1, 1e10, 1e-5), Level(4, 1e8, 25e-3)))
    pricer = Pricer(Deployment(PROFILE, network, 8))
    flat, seldom = (pricer.price(s) for s in ("bsp", "[bsp]@node > [local(8)]@site"))
    every = pricer.price("[bsp]@node > [bsp]@site")
    assert seldom.seconds < every.seconds
    assert seldom.seconds < flat.seconds
    assert seldom.sent_bytes < every.sent_bytes


@pytest.mark.parametrize("inner", ["none", "cast_fp16"])
def test_tiers_send_as_much_as_one_group_and_less_of_it_across(inner: str) -> None:
    """Each member of a unit takes its shard across; where a compressor needs matrices, full copies cross."""
    network = Network(32, (Level(1, 1e10, 1e-5), Level(8, 1e8, 1e-4)))
    pricer = Pricer(Deployment(PROFILE, network, 32))
    flat, tiers = pricer.price(inner), pricer.price(f"[{inner}]@node > [{inner}]@site")
    assert tiers.sent_bytes == pytest.approx(flat.sent_bytes)
    assert tiers.seconds < flat.seconds
    inside = pricer.price(f"[{inner}]@node > [accumulate(1000000000)]@site").sent_bytes
    thin, sparse = (
        pricer.price(f"[{inner}]@node > [{outer}]@site").sent_bytes - inside for outer in ("power_sgd(2)", "topk(0.1)")
    )
    units = Pricer(Deployment(PROFILE, Network.flat(4, 1e8), 4))
    assert thin == pytest.approx(units.price("power_sgd(2)").sent_bytes, rel=1e-6)
    assert sparse == pytest.approx(units.price("topk(0.1)").sent_bytes / 8, rel=1e-6)


@pytest.mark.parametrize("strategy", ["bsp", "bsp / mg_wfbp", "bsp / topk(0.01)+ef", "local(4) / cast_bf16"])
def test_prices_on_another_network_are_those_of_a_pricer_of_its_own(strategy: str) -> None:
    slow, fast = (Deployment(PROFILE, Network.flat(4, rate, 1e-4), 4) for rate in (1e7, 1e9))
    first = Pricer(slow)
    before = first.price(strategy).seconds
    assert first.on(fast.network).price(strategy).seconds == Pricer(fast).price(strategy).seconds < before
    assert first.price(strategy).seconds == before


def test_what_has_no_closed_form_is_refused() -> None:
    pricer = Pricer(Deployment(PROFILE, Network.flat(4, 1e9), 4))
    for strategy in ("dpsgd / none / gossip / ring", "adacomm", "[bsp]@node > [bsp]@site"):
        with pytest.raises(PlanError, match="--engine virtual"):
            pricer.price(strategy)


def test_one_worker_sends_nothing() -> None:
    found = Pricer(Deployment(PROFILE, Network.flat(1, 1e6), 1)).price("bsp")
    assert found.seconds == pytest.approx(PROFILE.model.seconds)
    assert found.sent_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    ready=st.lists(st.floats(0, 1), min_size=1, max_size=8).map(sorted),
    seconds=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    pace=st.floats(0.1, 1.0),
)
def test_a_step_is_never_shorter_than_its_parts(ready: list[float], seconds: list[float], pace: float) -> None:
    alone = np.array(seconds[: len(ready)])
    nothing = np.zeros(len(ready))
    traffic = Traffic(np.array(ready), nothing, nothing, [TransferTimes(alone, alone, pace)])
    found = iterate(1.0, np.array([0.5]), 0.1, traffic)
    assert found.seconds >= 1.6 - 1e-9
    assert found.seconds >= alone.sum() + ready[0] - 1e-9
    assert (found.arrives >= found.leaves + alone - 1e-9).all()
    later = iterate(1.0, np.array([0.5]), 0.1, replace(traffic, rounds=[TransferTimes(2 * alone, 2 * alone, pace)]))
    assert later.seconds >= found.seconds - 1e-9


def test_a_slower_pace_beside_computing_hides_less() -> None:
    one = np.array([0.4])
    times = [
        iterate(
            1.0, np.array([0.0]), 0.0, Traffic(np.zeros(1), 0 * one, 0 * one, [TransferTimes(one, one, pace)])
        ).seconds
        for pace in (1.0, 0.4, 0.1)
    ]
    assert times == pytest.approx([1.0, 1.0, 1.3])


@pytest.mark.parametrize("slowness", [(1.0,), (1.0, 1.5)])
@pytest.mark.parametrize(
    "network",
    [Network.flat(8, 1e7, 1e-4), Network.flat(8, 1e10, 1e-6), Network(8, (Level(1, 1e9, 1e-6), Level(4, 1e8, 1e-4)))],
)
def test_computing_coding_and_the_wire_add_up_to_the_step(network: Network, slowness: tuple[float, ...]) -> None:
    """The parts of the iteration that the closed form finds, and of the options that a plan shows."""
    codecs = tuple(
        CodecTimes(words, 1e-4, 1e-9, 2e-4, 2e-9) for words in ("topk+error_feedback", "cast_bf16", "qsgd", "cast_fp16")
    )
    profile = replace(PROFILE, codecs=codecs, model=replace(PROFILE.model, even=0.8))
    deployment = Deployment(profile, network, 8, slowness)
    texts = ["bsp", "bsp / topk(0.01)+ef", "bsp / cast_bf16 / wfbp(0)", "bsp / qsgd / mg_wfbp", "bsp / dear(64KiB)"]
    texts += ["local(4)", "local(4) / qsgd", "accumulate(4) / cast_bf16", "asp / none / ps", "bsp / cast_bf16 / ps"]
    if len(network.levels) > 1:
        texts += ["[bsp]@node > [bsp / topk(0.01)+ef]@site", "[bsp]@node > [local(4) / qsgd]@site"]
    pricer, advice = Pricer(deployment), advise(deployment, "model", "network", consider=texts)
    for option in (*advice.options, advice.baseline):
        parts = (option.computing_seconds, option.coding_seconds, option.exposed_seconds)
        assert sum(parts) == pytest.approx(option.step_seconds, rel=1e-12) and min(parts) >= 0
    for text in texts:
        found = pricer.price(text)
        if found.iterated is not None:
            assert found.seconds == pytest.approx(found.iterated.seconds, rel=1e-9), text
        assert (found.coding_seconds > 0) == any(words in text for words in ("topk", "cast", "qsgd"))
    assert pricer.price("local(4)").computing_seconds == pytest.approx(deployment.own_seconds(4))


@pytest.mark.parametrize("strategy", ["bsp / topk(0.01)+ef / wfbp(64KiB)", "local(4) / topk(0.01)+ef"])
def test_what_a_bucket_takes_is_counted_once_for_each_as_on_the_virtual_engine(strategy: str) -> None:
    codec = CodecTimes("topk+error_feedback", 1e-5, 1e-9, 2e-5, 1e-9, 4e-3, 8e-3)
    profile, network = replace(PROFILE, codecs=(codec,)), Network.flat(4, 1e10, 1e-6)
    period = 4 if strategy.startswith("local") else 1
    found = Pricer(Deployment(profile, network, 4)).price(strategy)
    without = Pricer(Deployment(replace(PROFILE, codecs=()), network, 4)).price(strategy)
    assert found.seconds == pytest.approx(virtual_seconds(profile, strategy, network, 4, period), rel=0.02)
    buckets = round((found.coding_seconds * period - 30e-6 * 6) / 12e-3)
    assert buckets == (1 if period > 1 else 3) and without.coding_seconds == 0
