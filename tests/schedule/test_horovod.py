"""Horovod's cycles and fusion buffer in the simulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.iteration import period
from laconic.schedule.horovod import Horovod
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from tests.cost.test_iteration import alone, models, whole

NO_LIMIT = 2**60


@pytest.mark.long
@given(models(), st.floats(0, 0.5), st.floats(0, 0.3), st.floats(1.0, 1e3))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("horovod", check=1)
def test_its_ends_are_wait_free_backpropagation_and_sending_all_at_once(
    layers: LayerTimes, a: float, b: float, longer: float
) -> None:
    price = Price(a, b)
    eager, patient = Horovod(0, 0.0), Horovod(NO_LIMIT, longer * sum(layers.backward) + 1e-9)
    assert eager.iteration_seconds(layers, price) == pytest.approx(period(layers, alone(layers, price.seconds)))
    assert patient.iteration_seconds(layers, price) == pytest.approx(period(layers, whole(layers, price.seconds)))


@given(models(), st.floats(0.01, 2.0), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_every_tensor_is_sent_once_in_order_of_readiness_and_none_is_fused_above_the_threshold(
    layers: LayerTimes, cycle: float, threshold: int
) -> None:
    since = [sum(layers.backward[i:]) for i in range(layers.count)]
    groups = Horovod(threshold, cycle).fused(layers)
    sent = [i for group in groups for i in group]
    assert sorted(sent) == list(range(layers.count))
    assert [since[i] for i in sent] == pytest.approx(sorted(since))
    for group in groups:
        assert len(group) == 1 or sum(layers.nbytes[i] for i in group) <= threshold
        assert since[group[-1]] - since[group[0]] <= cycle * (1 + 1e-9)


def test_a_cycle_gathers_what_came_since_the_last() -> None:
    layers = LayerTimes((0.0,) * 5, (0.25, 0.25, 0.1, 0.25, 0.1), (1.0,) * 5)  # ready at 0.95, 0.7, 0.45, 0.35, 0.1
    assert Horovod(NO_LIMIT, 0.3).fused(layers) == [(4,), (3, 2), (1,), (0,)]
    assert Horovod(1, 0.3).fused(layers) == [(4,), (3,), (2,), (1,), (0,)]
    seconds = Horovod(NO_LIMIT, 0.3).iteration_seconds(layers, Price(0.2, 0.0))
    assert seconds == pytest.approx(0.95 + 0.2 + 0.15)  # the second last is sent from 0.9 to 1.1


def test_of_gradients_that_are_ready_together_the_last_layers_goes_first() -> None:
    """The backward pass reaches the last layer first; layers that take no time become ready with it."""
    layers = LayerTimes((1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (4.0, 4.0, 4.0))
    assert Horovod(0, 0.0).fused(layers) == [(2,), (1,), (0,)]
