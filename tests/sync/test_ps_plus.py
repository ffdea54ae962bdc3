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
from tests.sync import digits, rounds, serving

ELEMENTS = 100_000


def alone(rule: str, compute: float, transfer: float) -> tuple[float, set[int]]:
    """Seconds of a step, and the staleness of every push but the first ones, of a lone worker and a server on a
    full-duplex link, when the model takes so long to be sent one way."""

    def body() -> tuple[float, set[int]]:
        model: nn.Module = nn.Linear(ELEMENTS, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), rule)
        times, staleness = [], []
        for _ in range(12):
            model(torch.ones(1, ELEMENTS)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(connect().clock_seconds())
            staleness.append(int(optimizer.session.noted.get("staleness", -1)))
        return (times[-1] - times[3]) / 8, set(staleness[4:])

    network = Network.flat(2, 8 * 4 * ELEMENTS / transfer)
    seconds = Compute(0.4 * compute, 0.5 * compute, 0.1 * compute)
    found: tuple[float, set[int]] = laconic.simulate(body, 1, network, seconds, servers=1).results[0]
    return found


CASES = [
    (compute, transfer, words)
    for compute, transfer in ((1.0, 0.1), (1.0, 0.4), (1.0, 0.5), (0.4, 1.0), (1.0, 0.9), (1.0, 1.5), (0.2, 1.0))
    for words in ("none", "bf16")
]
"""Seconds of computing and of a pull, and what makes the push as long as the pull or half as long."""


@pytest.mark.long
@pytest.mark.technique("ps_plus", check=1)
@pytest.mark.technique("ps_plus", check=2)
@pytest.mark.parametrize(("compute", "transfer", "words"), CASES)
def test_by_default_one_update_behind_and_as_long_as_the_longest_part(
    compute: float, transfer: float, words: str
) -> None:
    """Both in the same run where all three parts together are no longer than twice the longest. Elsewhere nobody can
    have both: the model of a step holds the update before the last, so that two steps hold one push, pull and
    computation in series, and a step takes half of them; and not less than its longest part."""
    push = transfer / (2 if words == "bf16" else 1)
    longest, series = max(compute, push, transfer), compute + push + transfer
    seconds, staleness = alone(f"ps_plus / {words}", compute, transfer)
    assert staleness == {1}
    assert seconds == pytest.approx(longest if series <= 2 * longest else series / 2, rel=0.02)
    plain, current = alone(f"asp / {words}", compute, transfer)
    assert plain == pytest.approx(series, rel=0.02) and current == {0}
    eager, behind = alone(f"ps_plus(pull=at_once) / {words}", compute, transfer)
    assert eager == pytest.approx(longest, rel=0.02) and behind == {2}


def test_the_cases_lie_on_both_sides_of_the_condition() -> None:
    """Enough of them in which computing, or a pull, is the longest part and one sentence meets both promises."""
    met = []
    for compute, transfer, words in CASES:
        parts = compute, transfer, transfer / (2 if words == "bf16" else 1)
        met.append((sum(parts) <= 2 * max(parts), compute >= transfer))
    assert set(met) == {(True, True), (True, False), (False, True), (False, False)}


def lateness(rule: str, workers: int, gradients: int) -> dict[int, list[int]]:
    """By worker, the staleness of its pushes; PS+ learns of each with the next."""
    _, pushes = serving.busy(rule, gradients, workers, compute=Compute(0.4, 0.5, 0.1, law="exponential"))
    found = defaultdict(list)
    for push in pushes:
        found[push.rank].append(push.staleness)
    return found


@pytest.mark.parametrize("rule", ["ps_plus", "ps_plus(pull=at_once)"])
def test_training_goes_on_from_where_it_ended(rule: str) -> None:
    """The end waits for the pull in flight, so that the next step does not take over what is older than the end. As in
    the first step of all, nothing was pulled yet then: the model changes with the steps after."""

    def body() -> list[torch.Tensor]:
        run = rounds.train(rule, 3)
        laconic.finish(run.model, run.optimizer)
        path = [rounds.flat(run.model.parameters())]
        for step in range(3, 7):
            rounds.loss(run.model, 0, step).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            path.append(rounds.flat(run.model.parameters()))
        return path

    ((ended, first, *_, last),) = laconic.simulate(body, 1, compute=Compute(0.4, 0.5, 0.1)).results
    assert torch.equal(ended, first) and not torch.equal(ended, last)


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
