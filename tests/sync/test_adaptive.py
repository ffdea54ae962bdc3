"""The controller hook, and AdaComm as its first user."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

import laconic
from laconic import registry
from laconic.errors import ContractError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.registry import technique
from laconic.sync.adacomm import AdaComm
from laconic.sync.base import State, SyncContext
from laconic.sync.controller import Adjustment, Controlled, Observed
from laconic.virtual.compute import Compute
from tests.sync import digits
from tests.sync.rounds import Make, assert_same, flat, sgd, simulated, train, with_momentum

# ---------------------------------------------------------------------------------------------- the hook

SEEN: list[Observed] = []


@pytest.fixture
def watcher() -> Iterator[None]:
    """A rule that looks at everything in every step, doubles the batch each time and takes turns with the rate."""
    with registry.temporary():

        @technique("watcher", paper="a test's own")
        @dataclass(frozen=True)
        class Watcher(Controlled):
            """`bsp`, watched."""

            watches: ClassVar[tuple[str, ...]] = ("loss", "seconds", "gradient_norm")
            steers: ClassVar[bool] = True

            def init(self, section: SyncContext) -> State:
                return self.begin(section)

            def averages_gradients(self, step: int) -> bool:
                return True

            def decide(self, observed: Observed, state: State) -> Adjustment:
                SEEN.append(observed)
                return Adjustment(batch=2 ** (observed.step + 1), rate=0.5 if observed.step % 2 else 2.0)

            def after_step(self, section: SyncContext, state: State) -> Generator[Any, Any, State]:
                yield from self.consult(section, state)
                return state

        SEEN.clear()
        yield
        SEEN.clear()


def test_everybody_observes_the_same_round(watcher: None) -> None:
    """Each logs a loss of its own and computes at its own speed; one of them logs nothing."""

    def body() -> None:
        rank = laconic.rank()
        model: nn.Module = nn.Linear(1, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "watcher")
        for step in range(3):
            if rank < 2:
                laconic.log(loss=10.0 * (rank + 1) - step)
            optimizer.zero_grad()
            (3 * model(torch.ones(1, 1))).sum().backward()
            optimizer.step()

    compute = Compute(forward_seconds=1.0, slowness=(1.0, 2.0, 4.0))
    laconic.simulate(body, 3, Network.flat(3, 1e12), compute)
    begun, rounds = SEEN[:3], SEEN[3:]
    assert [observed.step for observed in begun] == [0] * 3
    assert all(rounds[k : k + 3] == [rounds[k]] * 3 for k in (0, 3, 6)), "all alike"
    first, _, third = rounds[0], rounds[3], rounds[6]
    assert (first.step, first.round, first.workers, third.step, third.round) == (1, 1, 3, 3, 3)
    assert (first.loss, third.loss, third.first_loss) == (15.0, 13.0, 15.0)
    assert (third.rate, third.first_rate) == pytest.approx((0.1, 0.1)), "the script's own"
    assert third.gradient_norm == pytest.approx(3.0)
    assert third.compute_seconds == pytest.approx((1.0, 2.0, 4.0), abs=1e-6)
    assert third.exchange_seconds == pytest.approx((3.0, 2.0, 0.0), abs=1e-6)
    assert third.seconds == pytest.approx(12.0, abs=1e-6)


def steps_of(
    model: nn.Module, optimizer: Any, scheduler: Any, count: int
) -> tuple[list[float], list[int], list[float]]:
    """The rate each step applied, the batch the script was given, the rate that the scheduler left."""
    applied, batches, left = [], [], []
    for _ in range(count):
        batches.append(laconic.batch_size(7))
        before = model.weight.item()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        applied.append(round(before - model.weight.item(), 6))
        scheduler.step()
        left.append(optimizer.param_groups[0]["lr"])
    return applied, batches, left


def scheduled() -> tuple[nn.Module, Any, Any]:
    model: nn.Module = nn.Linear(1, 1, bias=False)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.8), "watcher")
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_decisions_reach_script_and_optimizer_without_a_quarrel_with_the_scheduler(
    watcher: None, tmp_path: Path
) -> None:
    def body() -> None:
        assert laconic.batch_size(7) == 7, "nobody has decided yet"
        model, optimizer, scheduler = scheduled()
        applied, batches, left = steps_of(model, optimizer, scheduler, 3)
        assert applied == [1.6, 0.2, 0.4]
        assert batches == [2, 4, 8]
        assert left == [0.4, 0.2, 0.1]
        laconic.checkpoint(tmp_path, model, optimizer, scheduler=scheduler)

    def later() -> None:
        model, optimizer, scheduler = scheduled()
        laconic.resume(tmp_path, model, optimizer, scheduler=scheduler)
        assert steps_of(model, optimizer, scheduler, 1) == ([0.05], [16], [0.05])

    laconic.simulate(body, 2)
    laconic.simulate(later, 2)


def test_a_phase_that_ends_takes_its_decision_with_it(watcher: None) -> None:
    def body() -> None:
        model: nn.Module = nn.Linear(1, 1, bias=False)
        strategy = "watcher until step 2, then bsp"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), strategy)
        idle = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        applied, batches, _ = steps_of(model, optimizer, idle, 4)
        assert (applied, batches) == ([2.0, 0.5, 1.0, 1.0], [2, 4, 7, 7])

    laconic.simulate(body, 2)


def test_a_rule_that_steers_governs_the_whole_model(watcher: None) -> None:
    with pytest.raises(ContractError, match="sets batch or learning rate, which it can only do for the whole model"):
        simulated('{"0.*": watcher, else: bsp}', 1)


# ---------------------------------------------------------------------------------------------- adacomm


def observed(loss: float, seconds: float, rate: float = 0.1) -> Observed:
    return Observed(step=1, seconds=seconds, loss=loss, first_loss=2.0, rate=rate, first_rate=0.1)


def followed(rule: AdaComm, losses: list[float], rates: list[float] | None = None) -> list[int]:
    """The periods decided at the end of each interval."""
    state: State = {}
    periods = []
    for k, (loss, rate) in enumerate(zip(losses, rates or [0.1] * len(losses), strict=True)):
        decision = rule.decide(observed(loss, (k + 1) * rule.interval_seconds, rate), state)
        state["period"] = torch.tensor(decision.period)
        periods.append(decision.period)
    return periods


@pytest.mark.technique("adacomm", check=1)
def test_the_period_follows_the_loss() -> None:
    rule = AdaComm(period=20)
    losses = [1.5, 1.0, 0.5, 0.1, 0.01]
    assert followed(rule, losses) == [math.ceil(math.sqrt(loss / 2.0) * 20) for loss in losses]
    assert followed(rule, [1.5, 1.5, 3.0, 0.3, 0.3, 0.3, 0.3, 0.3]) == [18, 9, 4, 2, 1, 1, 1, 1], (
        "halved where it stalls"
    )
    assert followed(rule, [1.0, 0.25], rates=[0.1, 0.05]) == [15, 10], "a smaller rate allows a longer period"
    assert followed(rule, [0.0]) == [1]
    state: State = {"period": torch.tensor(20)}
    assert rule.decide(observed(1.0, 59.0), state).period == 20, "not before the interval is over"
    assert rule.decide(observed(1.0, 61.0), state).period == 15


@pytest.mark.long
@pytest.mark.technique("adacomm", check=2)
@pytest.mark.parametrize("make", [sgd, with_momentum])
def test_a_first_period_of_one_is_bsp(make: Make) -> None:
    ones, everyone = simulated("adacomm(1)", 20, make), simulated("bsp", 20, make)
    assert_same(ones, [run.path[-1] for run in everyone], tolerance=0)


def test_without_a_loss_it_is_refused_when_it_would_decide() -> None:
    with pytest.raises(ContractError, match=r"adacomm decides by the training loss.*laconic\.log\(loss=loss\)"):
        simulated("adacomm(4, interval_seconds=5)", 8, compute=Compute(forward_seconds=1.0))


def test_block_momentum_is_of_the_averaged_change_and_resets_the_workers_own() -> None:
    def body() -> Any:
        return train("adacomm(4, block_momentum=0.5)", 8, with_momentum)

    runs = laconic.simulate(body, 4).results
    assert all(not run.optimizer.state for run in runs)
    plain = simulated("local(4, momentum=reset)", 8, with_momentum)
    start = simulated("bsp", 1, lambda p: torch.optim.SGD(p, lr=0.0))[0].path[0]
    first = plain[0].path[3] - start
    torch.testing.assert_close(runs[0].path[3], plain[0].path[3])  # u = the change of the first round
    torch.testing.assert_close(runs[0].remembered("block"), runs[0].path[7] - runs[0].path[3])
    torch.testing.assert_close(runs[0].path[7], plain[0].path[7] + 0.5 * first)  # both leave the same point


Y_SECONDS = 1e-3
SECONDS = 1.2


def race(strategy: str) -> list[tuple[float, float]]:
    """(time, training loss) where the workers have just met; each has images of three digits or so."""
    images, labels, _, _ = digits.data()
    size = flat(digits.network(0).parameters()).nbytes
    network = Network.flat(4, 8 * 1.5 * size / (4 * Y_SECONDS))  # D = 4 Y: an all-reduce of four sends 1.5 models

    def body() -> list[tuple[float, float]]:
        worker, draw = connect(), torch.Generator().manual_seed(laconic.rank())
        mine = labels.argsort(stable=True).tensor_split(4)[laconic.rank()]
        model = digits.network(0)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
        began, curve = worker.clock_seconds(), []
        state = optimizer.session.partitions[0].tiers[0]  # type: ignore[attr-defined]
        for step in range(1, 100_000):
            chosen = mine[torch.randint(len(mine), (8,), generator=draw)]
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            laconic.log(loss=loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            now = worker.clock_seconds() - began
            if laconic.rank() == 0 and state.sync_state.get("met", step) == step and step % 4 == 0:
                with torch.no_grad():
                    curve.append((now, functional.cross_entropy(model(images), labels).item()))
            if now > SECONDS:
                break
        return curve

    curve: list[tuple[float, float]] = laconic.simulate(body, 4, network, Compute(forward_seconds=Y_SECONDS)).results[0]
    return curve


def final(curve: list[tuple[float, float]]) -> float:
    return sum(loss for _, loss in curve[-5:]) / 5


@pytest.mark.technique("adacomm", check=3)
@pytest.mark.long
def test_it_is_sooner_than_bsp_and_ends_lower_than_its_first_period() -> None:
    bsp, fixed, adaptive = map(race, ("bsp", "local(16)", f"adacomm(16, interval_seconds={SECONDS / 10})"))
    reached = next(seconds for seconds, loss in adaptive if loss <= final(bsp))
    assert reached <= 0.6 * SECONDS
    assert final(adaptive) < final(fixed)
