"""A scheduler that knows what compression takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cost.iteration import Order, period
from laconic.errors import LaconicError
from laconic.schedule.compressed import Coding, compressed, seconds
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from tests.cost.test_iteration import alone, models
from tests.schedule.cnns import CNNS, profile

FREE = Price(0.0, 0.0)


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], LayerTimes, Price]:
    """A model, the price of a message, and some groups of neighbours in the order of backward."""
    layers = draw(models())
    cuts = draw(st.lists(st.booleans(), min_size=layers.count, max_size=layers.count))
    groups: list[tuple[int, ...]] = []
    for i in reversed(range(layers.count)):
        groups[-1:] = [(*groups[-1], i)] if groups and not cuts[i] else [*groups[-1:], (i,)]
    return groups, layers, Price(draw(st.floats(0, 0.3)), draw(st.floats(0, 0.3)))


@pytest.mark.long
@given(settings_of(), st.booleans())
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("compression_scheduler", check=1)
def test_what_costs_and_saves_nothing_is_not_compressed(
    given: tuple[list[tuple[int, ...]], LayerTimes, Price], gated: bool
) -> None:
    _, layers, price = given
    one_by_one = [(i,) for i in reversed(range(layers.count))]
    chosen = compressed(one_by_one, layers, price, Coding(FREE, FREE, 1.0), gated)
    assert chosen.tensors == frozenset()
    assert chosen.seconds == period(layers, alone(layers, price.seconds), Order(gated=gated))


@pytest.mark.long
@given(settings_of(), st.floats(0, 0.2), st.floats(0, 0.1), st.floats(0, 1), st.booleans())
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("compression_scheduler", check=3)
def test_it_is_never_above_sending_all_as_it_is_or_all_compressed(
    given: tuple[list[tuple[int, ...]], LayerTimes, Price], a: float, b: float, ratio: float, gated: bool
) -> None:
    groups, layers, price = given
    coding = Coding(Price(a, b), Price(a / 2, b / 2), ratio)
    chosen = compressed(groups, layers, price, coding, gated)
    assert chosen.seconds == seconds(groups, layers, price, coding, chosen.tensors, gated)
    for tensors in (frozenset[int](), frozenset(range(layers.count))):
        assert chosen.seconds <= seconds(groups, layers, price, coding, tensors, gated)


@pytest.mark.long
@pytest.mark.technique("compression_scheduler", check=2)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", CNNS)
def test_slower_networks_have_more_compressed_the_large_ones_first(name: str, gated: bool) -> None:
    """Messages of 10 Mb/s to 100 Gb/s; encoding and decoding at some GB/s with a start-up of their own."""
    layers = profile(name)
    coding = Coding(Price(1e-4, 1e-10), Price(5e-5, 5e-11), 0.01)
    groups = [(i,) for i in reversed(range(layers.count))]
    counts = []
    for tenth in range(70, 111):
        price = Price(1e-5, 8 / 10 ** (tenth / 10))
        tensors = compressed(groups, layers, price, coding, gated).tensors
        kept = [layers.nbytes[i] for i in range(layers.count) if i not in tensors]
        assert not tensors or min(layers.nbytes[i] for i in tensors) >= max(kept, default=0)
        counts.append(len(tensors))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 0 and counts[-1] == 0


def test_encoding_delays_backward_and_decoding_the_forward_pass() -> None:
    """By hand: two tensors of 8 and 4 bytes at a second each, half of which is sent; encoding takes 0.5 seconds and
    decoding 0.25. Backward is over at 2, with the second encoded at 2.5 and with both at 3."""
    layers, price = LayerTimes((1.0, 1.0), (1.0, 1.0), (8.0, 4.0)), Price(0.0, 1.0)
    coding = Coding(Price(0.5, 0.0), Price(0.25, 0.0), 0.5)

    def taking(*tensors: int, gated: bool = False) -> float:
        return seconds([(1,), (0,)], layers, price, coding, frozenset(tensors), gated)

    assert taking() == 1 + 4 + 8 + 2
    assert taking(1) == 1.5 + 2 + 8 + 0.25 + 2
    assert taking(0, 1) == 1.5 + 2 + 4 + 0.5 + 2
    assert taking(0) == 1 + 4 + 4 + 0.25 + 2
    assert taking(0, 1, gated=True) == 1.5 + 2 + 4 + 0.25 + 1 + 0.25 + 1


@pytest.mark.parametrize("large", [0, 1, 5, 16, 20, 24])
def test_only_tensors_that_gain_are_compressed(large: int) -> None:
    """Of 24 tensors these have 40 bytes and the others one, at a second each; encoding takes two seconds."""
    sizes = tuple(40.0 if i < large else 1.0 for i in range(24))
    layers = LayerTimes((0.0,) * 24, (0.0,) * 24, sizes)
    groups = [(i,) for i in reversed(range(24))]
    chosen = compressed(groups, layers, Price(0.0, 1.0), Coding(FREE, Price(2.0, 0.0), 0.5))
    assert chosen.tensors == set(range(large)) and chosen.seconds == 22 * large + 24 - large


def test_groups_of_other_tensors_are_refused() -> None:
    with pytest.raises(LaconicError, match="each of 2 tensors once"):
        compressed([(0,)], LayerTimes((0.0,) * 2, (0.0,) * 2, (1.0,) * 2), FREE, Coding(FREE, FREE, 0.5))
