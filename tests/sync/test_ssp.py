"""ssp: clocks never more than s apart, reads that hold what they must, and who waits for how long."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

import laconic
from laconic.real.connect import connect
from laconic.virtual.compute import Compute, Stragglers
from tests.sync import rounds, serving

ONE_SECOND = {"forward_seconds": 0.4, "backward_seconds": 0.5, "step_seconds": 0.1}


def apart(seen: list[serving.Seen], workers: int) -> int:
    """The most clocks by which anybody was ahead of anybody; a worker is at clock c when it may compute its step c."""

    def when(moment: serving.Seen) -> float:
        return round(moment.seconds, 9)

    clocks, most = [0] * workers, 0
    for _, together in groupby(sorted(seen, key=when), key=when):
        for moment in together:
            clocks[moment.rank] = moment.step + 1
        most = max(most, max(clocks) - min(clocks))
    return most


@pytest.mark.technique("ssp", check=1)
@pytest.mark.technique("ssp", check=2)
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize(
    "compute",
    [Compute(**ONE_SECOND, slowness=(1, 1, 1, 5)), Compute(**ONE_SECOND, law="exponential")],
    ids=["one five times slower", "exponential"],
)
def test_clocks_stay_together_and_reads_hold_what_they_must(staleness: int, compute: Compute) -> None:
    """Tagged updates: a read at clock c holds all of stamp c - s - 1 and before, and all of the reader's own."""
    simulated, seen = serving.count(f"ssp({staleness})", 4, 12, compute=compute)
    assert apart(seen, 4) <= staleness
    if compute.slowness[-1] == 5:
        assert apart(seen, 4) == staleness
    for moment in seen:
        clock = moment.step + 1
        assert (moment.tags[moment.rank, :clock] == 1).all()
        assert (moment.tags[:, : max(clock - staleness, 0)] == 1).all()
    assert all((tags == 1).all() for tags in simulated.results)


@pytest.mark.long
@pytest.mark.technique("ssp", check=3)
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum])
def test_no_staleness_is_bsp(make: rounds.Make) -> None:
    stale, together = (rounds.simulated(rule, 20, make) for rule in ("ssp(0)", "bsp"))
    for a, b in zip(stale, together, strict=True):
        torch.testing.assert_close(torch.stack(a.path), torch.stack(b.path), rtol=0, atol=1e-6)


def waited(rule: str, compute: Compute, workers: int, steps: int = 60) -> tuple[float, float]:
    """Seconds that all workers waited in the mean, and until the last was done."""

    def body() -> float:
        model = serving.Counter(workers, 1)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), rule)
        for _ in range(steps):
            model(laconic.rank(), 0, 1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return connect().waited_seconds

    simulated = laconic.simulate(body, workers, compute=compute)
    return sum(simulated.results) / workers, simulated.seconds


@pytest.mark.long
@pytest.mark.technique("ssp", check=3)
def test_staleness_of_three_halves_the_waiting_for_random_stragglers() -> None:
    compute = Compute(**ONE_SECOND, straggling=Stragglers(0.2, 3.0))
    strict, stale = (waited(f"ssp({s})", compute, 8)[0] for s in (0, 3))
    assert strict / stale >= 2


@pytest.mark.long
def test_a_permanent_straggler_brings_it_to_the_pace_of_bsp() -> None:
    """Staleness only delays the moment from which everybody waits for the slowest."""
    compute, steps = Compute(**ONE_SECOND, slowness=(1, 1, 1, 5)), 60
    together, stale = (waited(rule, compute, 4, steps)[1] for rule in ("bsp", "ssp(3)"))
    assert together == pytest.approx(5 * steps)
    assert stale >= 5 * (steps - 4)
    assert waited("ssp(3)", compute, 4, steps)[0] >= 0.9 * waited("bsp", compute, 4, steps)[0]
