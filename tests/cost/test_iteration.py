"""The iteration's task graph against the closed recursions of its simplest schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.cost.lanes import Lane, Task, serve
from laconic.errors import LaconicError
from laconic.values.layer_times import LayerTimes

URGENT = Order({"net": Lane(by_urgency=True)}, gated=True)


@st.composite
def models(draw: st.DrawFn, most: int = 9) -> LayerTimes:
    count = draw(st.integers(1, most))
    seconds = st.lists(st.floats(0.0, 1.0), min_size=count, max_size=count)
    sizes = st.lists(st.floats(0.1, 10.0), min_size=count, max_size=count)
    return LayerTimes(tuple(draw(seconds)), tuple(draw(seconds)), tuple(draw(sizes)))


def alone(layers: LayerTimes, price: Callable[[float], float]) -> list[Transfer]:
    """Every tensor by itself, as backward makes them."""
    return [Transfer((i,), (Stage("net", price(n)),), n) for i, n in reversed(list(enumerate(layers.nbytes)))]


def in_halves(layers: LayerTimes, half: list[float]) -> float:
    """The period by hand: reduce-scatters beside backward, all-gathers beside forward."""
    ready = scattered = 0.0
    for i in reversed(range(layers.count)):
        ready += layers.backward[i]
        scattered = max(scattered, ready) + half[i]
    gathered = forward = scattered
    for i in range(layers.count):
        gathered += half[i]
        forward = max(forward, gathered) + layers.forward[i]
    return forward


def whole(layers: LayerTimes, price: Callable[[float], float]) -> list[Transfer]:
    total = sum(layers.nbytes)
    return [Transfer(tuple(range(layers.count)), (Stage("net", price(total)),), total, after_backward=True)]


@given(models(), st.booleans())
@settings(max_examples=60)
@pytest.mark.technique("iteration_dag", check=1)
def test_without_communication_the_period_is_computing(layers: LayerTimes, gated: bool) -> None:
    free = alone(layers, lambda n: 0.0)
    assert period(layers, free, Order(gated=gated)) == pytest.approx(layers.compute_seconds, rel=1e-12, abs=1e-12)


@pytest.mark.long
@given(
    models(),
    st.floats(0, 0.5),
    st.floats(0, 0.3),
    st.integers(0, 8),
    st.sampled_from(["forward", "backward", "nbytes"]),
)
@settings(max_examples=120)
@pytest.mark.technique("iteration_dag", check=2)
def test_no_period_is_below_its_busiest_lane_and_more_work_takes_no_less(
    layers: LayerTimes, a: float, b: float, which: int, what: str
) -> None:
    def price(n: float) -> float:
        return a + b * n

    busiest = max(layers.compute_seconds, sum(map(price, layers.nbytes)))
    for order in (Order(), Order(gated=True), URGENT):
        assert period(layers, alone(layers, price), order) >= busiest * (1 - 1e-12)
    values = list(getattr(layers, what))
    values[which % layers.count] += 0.4
    more = replace(layers, **{what: tuple(values)})
    for make in (alone, whole):
        assert period(more, make(more, price)) >= period(layers, make(layers, price)) * (1 - 1e-12)


@pytest.mark.long
@given(st.floats(0.01, 10), st.floats(0, 10), st.integers(1, 64))
@settings(max_examples=60)
@pytest.mark.technique("iteration_dag", check=3)
def test_speed_up_without_overlap_is_amdahls(ts: float, tm: float, workers: int) -> None:
    layers = LayerTimes((ts / workers / 3,), (2 * ts / workers / 3,), (1.0,))
    found = ts / period(layers, whole(layers, lambda n: tm))
    assert found == pytest.approx(ts / (ts / workers + tm), rel=1e-9)


@given(models(), st.floats(0, 0.5), st.floats(0, 0.3))
@settings(max_examples=60)
@pytest.mark.technique("wfbp_a2a", check=1)
def test_waiting_for_nothing_ends_when_the_recursion_says(layers: LayerTimes, a: float, b: float) -> None:
    ready = end = 0.0
    for seconds, n in reversed(list(zip(layers.backward, layers.nbytes, strict=True))):
        ready += seconds
        end = max(end, ready) + a + b * n
    found = period(layers, alone(layers, lambda n: a + b * n))
    assert found == pytest.approx(sum(layers.forward) + end, rel=1e-9, abs=1e-12)
    one = replace(layers, forward=layers.forward[:1], backward=layers.backward[:1], nbytes=layers.nbytes[:1])
    assert period(one, alone(one, lambda n: a + n)) == pytest.approx(
        period(one, whole(one, lambda n: a + n)), rel=1e-12
    )


@given(models(), st.floats(0, 0.5), st.floats(0, 0.3))
@settings(max_examples=60)
def test_push_and_pull_follow_their_recursion(layers: LayerTimes, a: float, b: float) -> None:
    transfers = [
        Transfer((i,), (Stage("up", a + b * n), Stage("down", a + b * n)), n)
        for i, n in reversed(list(enumerate(layers.nbytes)))
    ]
    ready = pushed = pulled = 0.0
    for seconds, n in reversed(list(zip(layers.backward, layers.nbytes, strict=True))):
        ready += seconds
        pushed = max(pushed, ready) + a + b * n
        pulled = max(pulled, pushed) + a + b * n
    assert period(layers, transfers) == pytest.approx(sum(layers.forward) + pulled, rel=1e-9, abs=1e-12)


@given(models(), st.floats(0, 0.5), st.floats(0, 0.3))
@settings(max_examples=60)
def test_a_split_all_reduce_follows_its_recursion(layers: LayerTimes, a: float, b: float) -> None:
    half = [a / 2 + b / 2 * n for n in layers.nbytes]
    transfers = [
        Transfer((i,), (Stage("net", half[i]),), n, later=(Stage("net", half[i]),))
        for i, n in reversed(list(enumerate(layers.nbytes)))
    ]
    assert period(layers, transfers, URGENT) == pytest.approx(in_halves(layers, half), rel=1e-9, abs=1e-12)


def test_postponed_weights_let_the_first_layer_leave_sooner() -> None:
    """Six layers of which the first is large; three postponed: its gradient is there after 5 of 6 seconds,
    and those of the second and third follow while the next forward pass has begun."""
    layers = LayerTimes((0.1,) * 6, (1.0,) * 6, (6.0, *(0.5,) * 5))
    transfers = alone(layers, lambda n: n / 2)
    plain, postponed = (period(layers, transfers, replace(URGENT, postponed=k)) for k in (0, 3))
    assert (plain, postponed) == (pytest.approx(6 + 3 + 0.6), pytest.approx(5 + 3 + 0.5 + 0.4))


def test_a_lane_with_credit_serves_what_it_has_taken_first() -> None:
    """Ten small ones are ready, then an urgent one: it waits for those that were taken over, no more."""
    tasks = [Task("net", 1.0, (), 5.0, 10.0) for _ in range(10)] + [
        Task("cpu", 0.5),
        Task("net", 1.0, (10,), 0.0, 10.0),
    ]
    began = {credit: serve(tasks, {"net": Lane(True, credit)}).starts[-1] for credit in (0.0, 20.0, 1000.0)}
    assert began == {0.0: 1.0, 20.0: 2.0, 1000.0: 10.0}


def test_tasks_that_need_each_other_are_never_served() -> None:
    times = serve([Task("cpu", 1.0, (1,)), Task("cpu", 1.0, (0,)), Task("cpu", 1.0)])
    assert times.ends[:2] == [float("inf")] * 2 and times.ends[2] == 1.0


def test_layers_of_different_lengths_are_refused() -> None:
    with pytest.raises(LaconicError, match="as many forward and backward times"):
        LayerTimes((1.0,), (1.0, 2.0), (1.0,))
