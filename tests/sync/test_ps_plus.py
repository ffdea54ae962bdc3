"""PS+: what overlaps with what, how much staler that is, and what it saves."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.sync import digits, serving

ELEMENTS = 100_000


def step_seconds(rule: str, compute: float, transfer: float) -> float:
    """Of a lone worker and a server on a full-duplex link, when the model takes so long to be sent one way."""

    def body() -> float:
        model: nn.Module = nn.Linear(ELEMENTS, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), rule)
        times = []
        for _ in range(12):
            model(torch.ones(1, ELEMENTS)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(connect().clock_seconds())
        return (times[-1] - times[3]) / 8

    network = Network.flat(2, 8 * 4 * ELEMENTS / transfer)
    seconds = Compute(0.4 * compute, 0.5 * compute, 0.1 * compute)
    return float(laconic.simulate(body, 1, network, seconds, servers=1).results[0])


@pytest.mark.long
@pytest.mark.technique("ps_plus", check=1)
def test_a_step_takes_as_long_as_its_longest_part() -> None:
    """Push and pull of the same length, and a push of half of it; computing the longest part, or the shortest.

    By default a pull sees the push before it, and of three parts only two go on at a time: that is enough as long as
    push and pull together are shorter than computing."""
    for compute, transfer in ((1.0, 0.4), (1.0, 1.5)):
        for compression, push in (("none", transfer), ("bf16", transfer / 2)):
            longest = max(compute, push, transfer)
            assert step_seconds(f"ps_plus(pull=at_once) / {compression}", compute, transfer) == pytest.approx(
                longest, rel=0.02
            )
            serial = step_seconds(f"asp / {compression}", compute, transfer)
            assert serial == pytest.approx(compute + push + transfer, rel=0.02)
            after = step_seconds(f"ps_plus / {compression}", compute, transfer)
            assert after == pytest.approx(max(longest, (compute + push + transfer) / 2), rel=0.02)


def lateness(rule: str, workers: int, gradients: int) -> dict[int, list[int]]:
    """By worker, the staleness of its pushes; PS+ learns of each with the next."""
    _, pushes = serving.busy(rule, gradients, workers, compute=Compute(0.4, 0.5, 0.1, law="exponential"))
    found = defaultdict(list)
    for push in pushes:
        found[push.rank].append(push.staleness)
    return found


@pytest.mark.long
@pytest.mark.technique("ps_plus", check=2)
@pytest.mark.parametrize(("rule", "alone"), [("ps_plus", 1), ("ps_plus(pull=at_once)", 2)])
def test_every_push_is_at_least_as_stale_as_asps(rule: str, alone: int) -> None:
    """Communication takes no time here, so that both push at the same moments; `at_once` is one more update behind."""
    eager, plain = lateness(rule, 4, 80), lateness("asp", 4, 80)
    for rank, stale in eager.items():
        assert all(a >= b for a, b in zip(stale[1:], plain[rank], strict=False))
    assert set(lateness(rule, 1, 12)[0][4:]) == {alone}
    assert set(lateness("asp", 1, 12)[0]) == {0}


@pytest.mark.technique("ps_plus", check=3)
@pytest.mark.long
def test_it_reaches_the_target_sooner_where_communication_takes_as_long_as_computing() -> None:
    """Four workers and as many servers; push and pull together take as long as computing. The same rates to choose
    from for both."""

    def seconds(rule: str, rate: float) -> float:
        parameters = sum(p.numel() for p in digits.network(0).parameters())
        network, compute = Network.flat(4, 8 * 4 * parameters / 0.5), Compute(0.4, 0.5, 0.1)
        _, trace = serving.train(
            f"{rule} / none / ps(4)", 300, 4, digits.sgd(rate), network=network, compute=compute, servers=4, every=8
        )
        return next((when for _, when, loss in trace.losses if loss <= 0.5), float("inf"))

    eager, plain = (min(seconds(rule, rate) for rate in (0.6, 1.0)) for rule in ("ps_plus", "asp"))
    assert eager <= 0.8 * plain
