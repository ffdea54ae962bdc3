"""Rules that treat workers by their speed: groups, barriers among the fast, local steps by speed, calls to meet."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import laconic
from laconic.sync.a2s import A2S
from laconic.sync.ashl import ASHL, local_steps
from laconic.sync.fsp import breakpoint_of
from laconic.sync.gssp import groups_by_speed
from laconic.virtual.compute import Compute, Stragglers
from tests.sync import rounds
from tests.sync.racing import Race, race
from tests.sync.stores import Served

CLASSES = (1.0,) * 4 + (2.0,) * 4 + (3.0,) * 4 + (4.0,) * 4


def spread_at_starts(run: Race, workers: list[int]) -> int:
    """By how many ready gradients a worker was ever ahead of the slowest of these, when it had one ready."""
    counts = Counter(dict.fromkeys(workers, 0))
    worst = 0
    for _, worker in run.gradients:
        if worker in counts:
            counts[worker] += 1
            worst = max(worst, counts[worker] - min(counts.values()))
    return worst


# ---------------------------------------------------------------------------------------------- GSSP


def test_workers_of_like_speed_form_groups() -> None:
    assert groups_by_speed([1.0, 4.1, 1.1, 4.0], 2) == [0, 1, 0, 1]
    assert groups_by_speed([1.0, 1.0, 1.0], 1) == [0, 0, 0]


def test_workers_push_to_the_server_of_their_group() -> None:
    """Until three steps are timed that is the group of their rank, then that of their speed."""
    compute = Compute(forward_seconds=0.01, slowness=(1, 4, 1.1, 4.2))
    run = laconic.simulate(lambda: rounds.train("gssp(groups=2)", 6), 4, compute=compute)
    assert run.rpc is not None
    pushes = [Counter(w for _, w, kind in one.calls if kind == "push") for one in run.rpc.hosted_actors.values()]
    assert pushes == [{0: 6, 1: 3, 2: 3}, {1: 3, 2: 3, 3: 6}]


@pytest.mark.long
@pytest.mark.technique("gssp", check=1)
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_group_is_bounded_and_a_slow_group_delays_no_other(staleness: int) -> None:
    """Workers of a group differ in speed, so that only waiting keeps them together: the fast one is exactly the bound
    ahead when it has its next gradient ready."""
    rule = f"gssp(groups=2, staleness={staleness})"
    run, slowed = (race(rule, 4, 240, slowness=(1, 1.4, *others)) for others in ((2, 2.7), (8, 10.8)))
    for each in (run, slowed):
        assert spread_at_starts(each, [0, 1]) == spread_at_starts(each, [2, 3]) == staleness + 1
    formed = [3 * 10.8 * 0.031 + 0.2, 3 * 2.7 * 0.031 + 0.2]  # groups wait for three steps of the slowest once
    waits = [np.diff([t for t in r.steps(0) if t > begun]) for r, begun in zip((slowed, run), formed, strict=True)]
    assert waits[0].mean() == pytest.approx(waits[1].mean(), rel=0.02) and waits[0].max() < 0.031 * 1.4 + 0.01


@pytest.mark.long
def test_groups_by_speed_keep_their_own_pace() -> None:
    """Groups are first made by rank, and here each then has a fast and a slow worker."""
    run = race("gssp(groups=2, staleness=1)", 4, 240, slowness=(1, 4, 1.4, 5.5))
    pace = [np.median(np.diff(run.steps(w)[10:])) for w in range(4)]
    assert pace[0] == pytest.approx(pace[2], rel=0.02) and pace[1] == pytest.approx(pace[3], rel=0.02)
    assert pace[1] > 3 * pace[0]


@pytest.mark.long
@pytest.mark.technique("gssp", check=2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("knobs", "staleness"), [("", 3), (", staleness=0", 0), (", staleness=1", 1)])
def test_one_group_is_ssp(knobs: str, staleness: int, seed: int) -> None:
    """Every worker makes its gradients in the same order and at the same times, to the microseconds that one more field
    of a push takes, waits as long, and ends with the same bits. The bound is reached and never passed, and another
    bound gives another model."""
    speeds = (1, 1.4, 2, 3.3)
    one, ssp, looser = (
        race(rule, 4, 120, slowness=speeds, seed=seed)
        for rule in (f"gssp(groups=1{knobs})", f"ssp({staleness})", f"ssp({staleness + 1})")
    )
    assert [worker for _, worker in one.gradients] == [worker for _, worker in ssp.gradients]
    times = [[seconds for seconds, _ in run.gradients] for run in (one, ssp)]
    assert times[0] == pytest.approx(times[1], abs=1e-4)
    assert one.waited_seconds == pytest.approx(ssp.waited_seconds, abs=1e-4)
    assert len(one.parameters) == len(ssp.parameters) == 4
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, ssp.parameters, strict=True))
    assert [spread_at_starts(run, [0, 1, 2, 3]) for run in (one, ssp)] == [staleness + 1] * 2
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters, looser.parameters, strict=True))


@pytest.mark.technique("gssp", check=3)
@pytest.mark.long
def test_sixteen_workers_in_four_classes_are_sooner_than_under_ssp() -> None:
    gssp = race("gssp(groups=4, staleness=3)", 16, 960, slowness=CLASSES, rate=1.0)
    ssp = race("ssp(3)", 16, 960, slowness=CLASSES, rate=1.0)
    assert ssp.seconds / gssp.seconds >= 1.4
    bsp = race("bsp", 16, 960, equal=True, rate=1.0)
    assert gssp.accuracy >= bsp.accuracy - 1


# ---------------------------------------------------------------------------------------------- A2S


def test_a_round_of_fast_workers_is_one_step_and_who_is_late_for_it_is_applied_as_a_slow_one() -> None:
    """By hand, at the rate 1: the mean of three of four workers counts three quarters, the fourth one, two updates
    old, a third of a quarter; and the fourth joins the round after the last that is complete."""
    served = Served(A2S(), workers=4)
    served.push(3, 8.0, seconds=5.0, round=-1)
    assert served.value == [-2.0], "a slow worker's gradient is applied on arrival"
    for worker, gradient in ((1, 3.0), (0, 6.0)):
        served.push(worker, gradient, seconds=1.0, round=0)
        assert served.value == [-2.0] and served.pull(worker) is None, "the barrier"
    served.push(2, 9.0, seconds=1.0, round=0)
    assert served.value == [-2.0 - 0.75 * 6.0]
    assert [served.pull(worker) for worker in range(4)] == [{"round": 1}] * 3 + [{"round": -1}]
    assert served.push(3, 12.0, version=0, seconds=1.0, round=0) == {"staleness": 2}
    assert served.value == [-6.5 - 12.0 / 4 / 3]
    assert served.pull(3) == {"round": 1}


@pytest.mark.long
@pytest.mark.technique("a2s", check=1)
def test_all_fast_is_bsp_and_all_slow_is_asp() -> None:
    fast, bsp = (race(s, 4, 120, equal=True, slowness=(1, 2, 1, 3)) for s in ("a2s(slow=0)", "bsp / none / ps"))
    assert torch.allclose(fast.parameters[0], bsp.parameters[0], atol=1e-6)
    slow, asp = (race(s, 4, 120, slowness=(1, 2, 1, 3)) for s in ("a2s(slow=2)", "asp(staleness=inverse)"))
    assert [w for _, w in slow.gradients] == [w for _, w in asp.gradients]
    assert torch.equal(slow.parameters[0], asp.parameters[0])


@pytest.mark.long
@pytest.mark.technique("a2s", check=2)
@pytest.mark.parametrize("threshold", [0, 1, 3])
@pytest.mark.parametrize("slowness", [(1, 1.2, 1.5, 5), (1.5, 5, 1, 1.2)], ids=str)
def test_slow_workers_block_nobody_and_fast_ones_stay_together(threshold: int, slowness: tuple[float, ...]) -> None:
    """Fast workers differ in speed, so that only the barrier keeps them together (without it they are 25 apart), and
    the fastest is exactly the bound ahead when it has its next gradient ready."""
    run = race(f"a2s(threshold={threshold})", 4, 200, slowness=slowness)
    fast = [w for w in range(4) if slowness[w] < 5]
    assert spread_at_starts(run, fast) == threshold + 1
    for worker in fast:
        pace = np.diff([t for t in run.steps(worker) if t > 0.7])  # the slow one is known by its second step: 0.31 s
        assert pace.max() < 0.031 * 1.5 + 0.005, "a fast worker waits for the slowest fast one alone"
    pace = np.diff(run.steps(slowness.index(5)))[4:]
    assert pace.max() < 0.031 * 5 + 0.005, "a slow worker waits for nobody"


@pytest.mark.long
def test_one_slow_worker_of_four_costs_a2s_little() -> None:
    """The row also has its final loss not above asp's: tuned, it is 4 % above here, at smaller rates within 1 %."""
    setting = {"slowness": (1, 1, 1, 5), "rate": 0.5}
    bsp = race("bsp", 4, 320, equal=True, **setting)
    a2s, asp = (race(s, 4, 1280, **setting) for s in ("a2s", "asp"))
    assert bsp.reached(bsp.loss) / a2s.reached(bsp.loss) >= 1.5
    assert a2s.loss <= asp.loss * 1.05


# ---------------------------------------------------------------------------------------------- ASHL


def test_changes_count_by_workers_and_the_mean_loss_switches_to_short_rounds_that_wait() -> None:
    served = Served(ASHL(coarse=8, fine=2, staleness=1, switch=1.0), workers=2)
    served.push(0, 3.0, step_seconds=1.0, transfer_seconds=0.0, loss=0.5)
    assert served.value == [1.5], "half of a change of one of two workers"
    assert served.pull(0) == {"steps": 2, "fine": True}, "the mean of one loss is below the switch"
    served = Served(ASHL(coarse=8, fine=2, staleness=1, switch=1.0), workers=2)
    served.push(1, 0.0, step_seconds=0.5, transfer_seconds=0.0, loss=2.0)
    for _ in range(3):
        served.push(0, 0.0, step_seconds=1.0, transfer_seconds=0.0, loss=0.5)
        assert served.pull(0) == {"steps": 8, "fine": False}, "nobody waits, and 1.25 is above the switch"
    served.push(0, 0.0, step_seconds=1.0, transfer_seconds=0.0, loss=-0.1)
    assert served.pull(0) is None and served.pull(1) == {"steps": 4, "fine": True}, "three rounds ahead of a bound of 1"
    for _ in range(2):
        served.push(1, 0.0, step_seconds=0.5, transfer_seconds=0.0)
    assert served.pull(0) == {"steps": 2, "fine": True}


@pytest.mark.long
@pytest.mark.technique("ashl", check=1)
def test_local_steps_make_rounds_equally_long() -> None:
    seconds = [1.0, 0.5, 0.25]
    steps = local_steps(seconds, [0.1, 0.1, 0.1], least=4)
    rounds = [h * p for h, p in zip(steps, seconds, strict=True)]
    assert steps == [4, 8, 16] and max(rounds) - min(rounds) <= max(seconds)
    run = race("ashl(coarse=4, switch=0)", 3, 120, slowness=(4, 2, 1))
    reported = {worker: notes["local_steps"] for worker, notes in run.notes if "local_steps" in notes}
    assert [reported[w] for w in range(3)] == [4, 8, 16]


def leads_after_the_switch(run: Race, workers: int) -> list[int]:
    """By how many rounds each finished round of the fine stage put its worker ahead of the slowest, in order of time.

    The first round in which a worker learns of the switch is left out: it may still carry a lead of the coarse stage.
    """
    ends = []
    for worker in range(workers):
        left, fine = 1, False
        for seconds, notes in zip(run.steps(worker), (n for w, n in run.notes if w == worker), strict=True):
            left -= 1
            if left == 0:
                ends.append((seconds, worker, fine))
                left, fine = int(notes["local_steps"]), bool(notes["fine"])
    counts, leads = Counter(dict.fromkeys(range(workers), 0)), []
    for _, worker, fine in sorted(ends):
        counts[worker] += 1
        if fine:
            leads.append(counts[worker] - min(counts.values()))
    return leads


@pytest.mark.long
@pytest.mark.technique("ashl", check=2)
@pytest.mark.parametrize("bits_per_second", [1e9, 2e6])
def test_always_fine_is_bsp(bits_per_second: float) -> None:
    """Workers differ in speed, by less than half a step, so that each makes one step a round."""
    setting = {"equal": True, "slowness": (1, 1.2, 1.4, 1.3), "bits_per_second": bits_per_second}
    fine, bsp = (race(s, 4, 60, **setting) for s in (f"ashl(switch={math.inf}, staleness=0)", "bsp / none / ps"))
    assert torch.allclose(fine.parameters[0], bsp.parameters[0], atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("ashl", check=2)
@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("slowness", [(1, 1.3, 1.7, 2.2), (1, 1, 1.4, 1.4)], ids=str)
def test_after_the_switch_rounds_are_bounded(staleness: int, slowness: tuple[float, ...]) -> None:
    """Rounds take up to 1.5 times as long for some as for others, since local steps are whole; without waiting, workers
    would be 11 and 16 rounds apart."""
    run = race(f"ashl(coarse=2, switch=1.5, staleness={staleness})", 4, 400, slowness=slowness)
    leads = leads_after_the_switch(run, 4)
    assert len(leads) > 100 and max(leads) == staleness + 1


@pytest.mark.long
@pytest.mark.technique("ashl", check=3)
def test_ashl_reaches_the_target_before_ssp_and_asp() -> None:
    setting = {"slowness": (1, 2, 3, 4), "bits_per_second": 8e6, "servers": 1}
    runs = {s: race(s, 4, 600, **setting) for s in ("ashl(coarse=4)", "ssp(3)", "asp")}
    target = max(run.loss for run in runs.values()) * 1.02
    when = {s: run.reached(target) for s, run in runs.items()}
    assert when["ssp(3)"] / when["ashl(coarse=4)"] >= 1.2 and when["asp"] / when["ashl(coarse=4)"] >= 1.2


# ---------------------------------------------------------------------------------------------- FSP


@pytest.mark.technique("fsp", check=1)
@pytest.mark.parametrize("bend", [12.0, 30.0, 55.0])
def test_the_bend_of_a_noisy_curve_is_found(bend: float) -> None:
    work = np.arange(1, 101, dtype=float)
    clean = np.where(work < bend, work, bend + 0.1 * (work - bend))
    noisy = clean + np.random.default_rng(0).normal(0, 0.01 * clean.max(), len(work))
    assert breakpoint_of(work, noisy) == pytest.approx(bend, rel=0.05)


@pytest.mark.parametrize("slowness", [(1,), (1, 1.7)], ids=str)
def test_an_interval_ends_with_the_mean_of_the_changes_weighted_by_steps(slowness: tuple[float, ...]) -> None:
    """Written out for three intervals, of 4 steps per worker on average; no loss is logged, so that there is no bend.
    The barrier is called when the last of these steps is made, and everybody ends the step it has begun by then."""

    def body() -> list[tuple[int, torch.Tensor]]:
        def look(run: rounds.Run, step: int) -> None:
            seen.append((int(run.optimizer.session.partitions[0].tiers[0].sync_state["interval"]), run.path[-1]))

        seen: list[tuple[int, torch.Tensor]] = []
        rounds.train("fsp(first=4)", 20, after=look)
        return seen

    results = laconic.simulate(body, len(slowness), compute=Compute(0.4, 0.5, 0.1, slowness)).results
    replicas, done = [rounds.net() for _ in slowness], [0] * len(slowness)
    anchor = rounds.flat(replicas[0].parameters())
    for interval in range(1, 4):
        ends = [1 + next(k for k, (number, _) in enumerate(seen) if number == interval) for seen in results]
        steps = [end - begun for end, begun in zip(ends, done, strict=True)]
        assert steps == ([5] if len(slowness) == 1 else [6, 4])
        for rank, replica in enumerate(replicas):
            optimizer = rounds.sgd(replica.parameters())
            for step in range(done[rank], ends[rank]):
                optimizer.zero_grad()
                rounds.loss(replica, rank, step).backward()
                optimizer.step()
        changes = [n * (rounds.flat(r.parameters()) - anchor) for n, r in zip(steps, replicas, strict=True)]
        anchor, done = anchor + sum(changes) / sum(steps), ends
        for replica, end, seen in zip(replicas, ends, results, strict=True):
            torch.testing.assert_close(seen[end - 1][1], anchor, rtol=0, atol=1e-12)
            torch.nn.utils.vector_to_parameters(anchor.clone(), replica.parameters())


@pytest.mark.long
@pytest.mark.technique("fsp", check=2)
def test_steps_follow_speeds_and_nobody_idles_longer_than_a_minibatch() -> None:
    run = race("fsp(first=16)", 3, 600, slowness=(1, 2, 4))
    counts = Counter(worker for _, worker in run.gradients)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15) and counts[0] / counts[2] == pytest.approx(4, rel=0.15)
    for worker, slow in enumerate((1, 2, 4)):
        pauses = np.diff(run.steps(worker)) - 0.031 * slow
        assert pauses.max() <= 0.031 * 4 + 0.02, "a minibatch of the slowest, and the exchange"


@pytest.mark.long
@pytest.mark.technique("fsp", check=3)
def test_fsp_needs_no_period_to_be_chosen() -> None:
    setting = {"slowness": (1, 1, 1, 2), "bits_per_second": 2e6, "straggling": Stragglers(0.1, 2.0)}
    fixed = {h: race(f"local({h})", 4, 512, equal=True, **setting) for h in (1, 4, 16, 64)}
    target = 1.05 * max(run.loss for run in fixed.values())
    when = {h: run.reached(target) for h, run in fixed.items()}
    fsp = race("fsp / none / ps(shards=4)", 4, 512, **setting).reached(target)
    assert max(when.values()) / fsp >= 1.5
    assert fsp <= 1.3 * min(when.values())
