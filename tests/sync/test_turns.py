"""Rules that order what is sent: one worker at a time at the server's link."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.architecture.server.actor import Push
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import Store
from laconic.errors import ContractError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.sync.equal_times import divide, fit
from laconic.sync.hsp import HSP
from laconic.sync.r2p import R2P
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.virtual.rpc import Delivery
from laconic.virtual.simulate import Simulated
from tests.sync import rounds
from tests.sync.stores import Served

WORKERS = 4
RATE = 1e9
MODEL_BYTES = 4 * 500 * 200
TRANSFER_SECONDS = 8 * MODEL_BYTES / RATE
"""One way."""


@dataclass
class Seen:
    """By step: when it was over, and what the rule noted about it. In all: seconds, and how many of them were spent
    waiting."""

    ends_seconds: list[float]
    noted: list[dict[str, float]]
    seconds: float
    waited_seconds: float


def train(strategy: str, steps: int) -> Seen:
    model = nn.Linear(500, 200, bias=False)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy)
    worker = connect()
    began, waited = worker.clock_seconds(), worker.waited_seconds
    seen = Seen([], [], 0.0, 0.0)
    for step in range(steps):
        draw = torch.Generator().manual_seed(100 * step + laconic.rank())
        model(torch.randn(laconic.batch_size(4), 500, generator=draw)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.ends_seconds.append(worker.clock_seconds())
        seen.noted.append(dict(optimizer.session.noted))
    seen.seconds, seen.waited_seconds = worker.clock_seconds() - began, worker.waited_seconds - waited
    return seen


def simulated(strategy: str, steps: int, compute: Compute, workers: int = WORKERS) -> Simulated:
    """With the server on a node of its own, whose link is as fast as everybody's."""
    return laconic.simulate(
        lambda: train(strategy, steps), workers, Network.flat(workers + 1, RATE), compute, servers=1
    )


def deliveries(run: Simulated, *kinds: str, server: int = WORKERS) -> list[Delivery]:
    """What went over the server's link, as it began; the first values go to everybody at once and do not count."""
    assert run.rpc is not None
    begun = max(run.results, key=lambda seen: seen.ends_seconds[0]).ends_seconds[0]
    over = [t for t in run.rpc.deliveries if server in (t.source, t.to) and t.kind in kinds and t.end_seconds > begun]
    return sorted(over, key=lambda trip: trip.begin_seconds)


def overlaps(over: list[Delivery]) -> int:
    return sum(later.begin_seconds < earlier.end_seconds - 1e-9 for earlier, later in pairwise(over))


# ---------------------------------------------------------------------------------------------- r2p


@pytest.mark.long
@pytest.mark.technique("r2p", check=1)
@pytest.mark.parametrize("slowness", [(1.0,), (1.0, 3.0, 1.0, 2.0)])
def test_turns_never_overlap_and_every_gradient_is_equally_old(slowness: tuple[float, ...]) -> None:
    run = simulated("r2p", 12, Compute(forward_seconds=0.05, slowness=slowness))
    over = deliveries(run, "push", "values")
    assert len(over) > 2 * 10 * WORKERS and overlaps(over) == 0
    for rank, seen in enumerate(run.results):
        assert [noted["staleness"] for noted in seen.noted] == [rank] + 11 * [WORKERS - 1]
    together = simulated("asp", 12, Compute(forward_seconds=0.05, slowness=slowness))
    assert overlaps(deliveries(together, "push", "values")) > 0


@pytest.mark.long
@pytest.mark.technique("r2p", check=2)
def test_a_period_has_one_transfer_where_bsp_has_all() -> None:
    both_ways = 2 * TRANSFER_SECONDS
    compute = Compute(forward_seconds=1.2 * (WORKERS - 1) * both_ways)

    def period(strategy: str) -> float:
        ends = simulated(strategy, 10, compute).results[0].ends_seconds
        return (ends[-1] - ends[4]) / 5

    assert period("r2p") == pytest.approx(compute.forward_seconds + both_ways, rel=0.01)
    assert period("bsp / ps") == pytest.approx(compute.forward_seconds + WORKERS * both_ways, rel=0.01)


@pytest.mark.long
@pytest.mark.technique("r2p", check=3)
def test_batches_are_tuned_until_all_compute_equally_long() -> None:
    compute = Compute(forward_seconds=0.01, backward_seconds=0.02, step_seconds=0.002, slowness=(4, 2, 1), batch=32)
    run = simulated("r2p(batch=256, retune=3)", 18, compute, workers=3)
    first, last = ([seen.noted[step] for seen in run.results] for step in (1, 14))
    assert max(n["compute_seconds"] for n in first) > 3 * min(n["compute_seconds"] for n in first)
    seconds = [noted["compute_seconds"] for noted in last]
    assert max(seconds) - min(seconds) < 0.05 * min(seconds)
    assert sum(noted["batch"] for noted in last) == 256
    assert last[0]["batch"] < last[1]["batch"] < last[2]["batch"]


@pytest.mark.parametrize("rule", ["r2p", "hsp", "hsp(none)"])
def test_pushes_come_in_the_order_of_ranks_whoever_is_ready_first(rule: str) -> None:
    compute = Compute(forward_seconds=0.1, slowness=(3.0, 1.0, 2.0))
    run = laconic.simulate(lambda: rounds.train(rule, 4), 3, compute=compute)
    assert run.rpc is not None
    (hosted,) = run.rpc.hosted_actors.values()
    assert [sender for _, sender, kind in hosted.calls if kind == "push"] == [0, 1, 2] * 4


def test_an_update_counts_by_its_share_of_the_batch_and_times_divide_the_batch_again() -> None:
    """By hand: two workers, of which the first computes one sample in a second and the other three."""
    served = Served(R2P(), workers=4)
    served.push(2, 8.0)
    assert served.value == [-2.0], "without a batch, one of four"
    served = Served(R2P(batch=8, retune=2), workers=2)
    assert served.push(0, 4.0, batch=4) == {"staleness": 0, "batch": 4}, "the first turn is not timed"
    assert served.push(1, 4.0, batch=4) == {"staleness": 0, "batch": 4} and served.value == [-4.0]
    for turn in range(2):
        assert served.push(0, 0.0, batch=4, seconds=4.0)["batch"] == 4
        assert served.push(1, 0.0, batch=4, seconds=4 / 3)["batch"] == (6 if turn else 4)
    assert served.push(0, 4.0, batch=4, seconds=4.0)["batch"] == 2
    served.push(1, 4.0, batch=6, seconds=2.0)
    assert served.value == [-4.0 - 2.0 - 3.0]


def test_a_batch_is_divided_by_lines() -> None:
    assert fit([[10, 0.12], [20, 0.22], [40, 0.42]]) == pytest.approx((0.01, 0.02))
    assert fit([[10, 0.1], [10, 0.1]]) == pytest.approx((0.01, 0.0))
    assert divide(70, [(4, 0), (2, 0), (1, 0)]) == [10, 20, 40]
    assert divide(5, [(1, 100), (1, 0)]) == [1, 4]
    assert sum(divide(101, [(0.3, 1), (0.7, 2), (0.11, 0)])) == 101
    with pytest.raises(ContractError, match="cannot be divided among 3 workers"):
        divide(2, [(1, 0)] * 3)


def test_a_worker_that_ends_gives_its_turns_away() -> None:
    def body() -> int:
        return len(train("r2p", 3 + 2 * laconic.rank()).noted)

    assert laconic.simulate(body, 3, compute=Compute(forward_seconds=0.1)).results == [3, 5, 7]


# ---------------------------------------------------------------------------------------------- hsp


@pytest.mark.long
@pytest.mark.technique("hsp", check=1)
@pytest.mark.parametrize("slowness", [(1.0,), (1.0, 3.0, 1.0, 2.0)])
def test_uploads_never_overlap_and_gradients_are_one_version_old_at_most(slowness: tuple[float, ...]) -> None:
    run = simulated("hsp(fresh=5)", 20, Compute(forward_seconds=WORKERS * TRANSFER_SECONDS, slowness=slowness))
    over = deliveries(run, "push")
    assert len(over) > 15 * WORKERS and overlaps(over) == 0
    assert {noted["staleness"] for seen in run.results for noted in seen.noted} == {0, 1}


@pytest.mark.long
@pytest.mark.technique("hsp", check=2)
def test_without_computing_ahead_it_is_bsp() -> None:
    compute = Compute(forward_seconds=0.01, slowness=(1, 2, 1, 3))
    plain, everyone = (
        rounds.simulated(s, 50, rounds.with_momentum, compute=compute) for s in ("hsp(none)", "bsp / ps")
    )
    for mine, theirs in zip(plain, everyone, strict=True):
        for a, b in zip(mine.path, theirs.path, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("hsp", check=3)
def test_computing_ahead_halves_idleness() -> None:
    compute = Compute(forward_seconds=WORKERS * TRANSFER_SECONDS)

    def idle(strategy: str) -> float:
        seen = simulated(strategy, 40, compute).results
        return sum(s.waited_seconds for s in seen) / sum(s.seconds for s in seen)

    assert idle("hsp") <= idle("hsp(ahead=none)") / 2


@pytest.mark.long
def test_where_waiting_is_short_nobody_computes_ahead() -> None:
    run = simulated("hsp", 10, Compute(forward_seconds=100 * WORKERS * TRANSFER_SECONDS))
    assert {noted["staleness"] for seen in run.results for noted in seen.noted} == {0}


@pytest.mark.parametrize(("read", "version", "staleness"), [(0, 0, 0), (3, 3, 0), (2, 3, 1), (1, 6, 5), (7, 6, 0)])
def test_staleness_is_how_many_updates_came_since_a_worker_read(read: int, version: int, staleness: int) -> None:
    rule, x = HSP(), torch.zeros(2)
    optimizer = torch.optim.SGD([x], lr=0.1)
    store = Store([Range(0, 0, 2, 0)], [TensorSpec("x", (2,), x.dtype)], [x], optimizer, size=2)
    rule.open(store)
    store.version = version
    assert rule.receive(store, Push(0, 1, read, [torch.ones(2)], {})) == {"staleness": staleness}
    assert store.version == version, "the other worker's push is missing"
    rule.receive(store, Push(1, 1, version, [torch.ones(2)], {}))
    assert store.version == version + 1


def test_all_hold_the_last_update_when_they_finish() -> None:
    def body() -> torch.Tensor:
        run = rounds.train("hsp", 7)
        laconic.finish(run.model, run.optimizer)
        return rounds.flat(run.model.parameters())

    first, *others = laconic.simulate(body, 3, Network.flat(3, 1e5), Compute(forward_seconds=0.001)).results
    assert all(torch.equal(first, other) for other in others)


def test_equal_batches_have_no_slope_and_divide_by_nothing() -> None:
    with np.errstate(all="raise"):
        assert fit([[8, 0.2], [8, 0.4]]) == pytest.approx((0.3 / 8, 0.0))
