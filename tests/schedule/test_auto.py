"""`auto` on virtual networks: it plans from what it has measured, is about as fast as the best, and plans again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic import claims, registry
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.schedule.auto import Auto, worth_sending_plain
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from laconic.virtual.compute import Compute
from laconic.virtual.simulate import simulate

WORDS = [e.name for e in registry.entries("schedule") if any(isinstance(c, claims.CoversOnce) for c in e.claims)]
OTHERS = [word for word in WORDS if word != "auto"]
WATCHED = 6


def few() -> nn.Module:
    return nn.Sequential(*(nn.Linear(60, 60, bias=False) for _ in range(5)))


def many() -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))


MODELS = {"few large": (few, 60), "many small": (many, 8)}
NETWORKS = {"fast": (1e9, 1e-5), "medium": (2e7, 1e-4), "slow": (2e6, 1e-3)}


def times(word: str, model_name: str, network: tuple[float, float], steps: int = 2) -> float:
    """Seconds of a step, once plans are made."""
    build, width = MODELS[model_name]

    def body() -> float:
        torch.manual_seed(1)
        model: nn.Module = build()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = laconic.distribute(model, optimizer, f"bsp / allreduce / {word}")
        begin, worker = 0.0, connect()
        for step in range(WATCHED + 2 + steps):
            if step == WATCHED + 2:
                begin = worker.clock_seconds()
            model(torch.ones(1, width)).sum().backward()
            optimizer.step()
        return (worker.clock_seconds() - begin) / steps

    rate, latency = network
    return float(simulate(body, 3, Network.flat(3, rate, latency), Compute(0.01, 0.02)).results[0])


@pytest.mark.long
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("model", MODELS)
def test_it_is_about_as_fast_as_the_best(model: str, network: str) -> None:
    own = times("auto", model, NETWORKS[network])
    others = {word: times(word, model, NETWORKS[network]) for word in OTHERS}
    assert own <= 1.05 * min(others.values())


@pytest.mark.long
def test_far_apart_every_worker_serves_a_share() -> None:
    """A ring pays a latency at every hop; a reduce-scatter and an all-gather among all at once pay few."""
    far = (1e9, 5e-3)
    own = times("auto(false)", "few large", far)
    assert own < 0.95 * min(times(word, "few large", far) for word in ("sequential", "mg_wfbp", "wfbp"))


def test_what_compression_makes_no_faster_is_sent_as_it_is() -> None:
    """Encoding starts up in two seconds, and then halves the bytes: 16 bytes at a quarter of a second each take as
    long either way."""
    specs = [TensorSpec(str(n), (n,), torch.float32) for n in (1, 4, 8)]
    timing = Timing((0.0,) * 3, (0.0,) * 3, Price(0.0, 0.25), compressed=Price(2.0, 0.125))
    assert worth_sending_plain(specs, timing) == {0, 1}
    assert worth_sending_plain(specs, replace(timing, compressed=None)) == frozenset()
    assert Auto().plan(specs, [2, 1, 0], timing).plain == {0, 1}


def planned(compute: Compute, steps: int) -> list[tuple[int, int, bool, float]]:
    """Whenever there is another plan: after how many steps, its messages, whether they may be late, and the seconds of
    computing that it counts with."""

    def body() -> list[tuple[int, int, bool, float]]:
        torch.manual_seed(1)
        model: nn.Module = many()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = laconic.distribute(model, optimizer, "bsp / auto")
        seen: list[tuple[int, int, bool, float]] = []
        reducer = None
        for step in range(steps):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            session = optimizer.session
            if session.reducer is not reducer:
                reducer = session.reducer
                counted = sum(session.comm_planner.forward) + sum(session.comm_planner.backward)
                seen.append((step + 1, len(reducer.messages), reducer.messages[0].plan.gated, counted))
        return seen

    rate, latency = NETWORKS["medium"]
    first, second = simulate(body, 2, Network.flat(2, rate, latency), compute).results
    assert first == second, "all workers plan alike"
    return list(first)


@pytest.mark.long
def test_it_plans_again_when_the_first_iterations_were_timed() -> None:
    plans = planned(Compute(0.01, 0.02), 9)
    assert plans[0] == (1, 1, False, 0), "merged by size until then"
    assert plans[-1][0] == WATCHED and plans[-1][1] > 1
    assert plans[-1][3] == pytest.approx(0.03)


@pytest.mark.long
def test_it_plans_again_when_computing_takes_another_time() -> None:
    """From the seventieth step on each takes a tenth of the time: less of communication can be hidden."""
    faster = ((1.0, 1.0),) * 70 + ((0.1, 0.1),) * 200
    plans = planned(Compute(0.01, 0.02, trace=faster), 130)
    assert [when for when, *_ in plans] == [1, WATCHED, plans[-1][0]] and 70 < plans[-1][0] <= 130
    assert plans[1][3] == pytest.approx(0.03) and plans[2][3] == pytest.approx(0.003)
    assert plans[2][1] < plans[1][1], "and start-ups are worth more"


@pytest.mark.long
def test_it_goes_on_with_its_plan_when_nothing_changes() -> None:
    assert len(planned(Compute(0.01, 0.02), 130)) == 2
