"""Ratios for each layer under one budget of bytes."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.compression.layerwise import WIDTHS, LayerwiseBits, error_of, hidden_density, spend
from laconic.compression.topk import largest
from laconic.real.connect import connect
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind
from tests.compression.table import compressor, meet
from tests.data import fixture
from tests.sync.digits import data, network, sgd, trained


@cache
def recorded(deep: bool = False) -> list[list[Tensor]]:
    """The gradients of every layer, step by step, while a network learns."""
    images, labels, _, _ = data()
    model, draw = network(0), torch.Generator().manual_seed(0)
    if deep:
        between = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), *between, nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for _ in range(30):
        chosen = torch.randint(len(labels), (32,), generator=draw)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        found.append([p.grad.detach().clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return found


def sent(text: str, x: Tensor) -> tuple[Tensor, int]:
    """Return the decoded tensor, and the bytes of its message."""
    messages: list[list[tuple[str, Tensor]]] = []
    (outcome,) = meet(compressor(text), [x], payloads=messages)
    return outcome.result, sum(part.nbytes for _, part in messages[0])


def energy(x: Tensor) -> float:
    return float(x.double().square().sum())


def at_equal_bytes(layers: list[Tensor], ratio: float) -> tuple[float, float]:
    """Energy that one threshold captures, and that the same ratio in every layer does."""
    uniform = [sent(f"topk({ratio}, index=plain)", layer) for layer in layers]
    flat = torch.cat([layer.reshape(-1) for layer in layers])
    count = sum(nbytes for _, nbytes in uniform) // 8
    whole, nbytes = sent(f"topk({count / flat.numel()!r}, index=plain)", flat)
    assert nbytes == sum(nbytes for _, nbytes in uniform)
    return energy(whole), sum(energy(result) for result, _ in uniform)


@pytest.mark.long
@pytest.mark.technique("layerwise_ratio", check=1)
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_one_threshold_captures_at_least_what_one_ratio_does(ratio: float) -> None:
    for layers in recorded() + recorded(deep=True):
        one_threshold, one_ratio = at_equal_bytes(layers, ratio)
        assert one_threshold >= one_ratio * (1 - 1e-12)


@pytest.mark.technique("layerwise_ratio", check=1)
def test_of_recorded_vectors_too() -> None:
    kept = fixture("topk.npz")
    inputs = [torch.from_numpy(value).float() for value in kept.values() if value.dtype.kind == "f" and value.size > 99]
    assert inputs
    one_threshold, one_ratio = at_equal_bytes([x.reshape(-1) for x in inputs], 0.05)
    assert one_threshold >= one_ratio * (1 - 1e-12)


@pytest.mark.long
@pytest.mark.technique("layerwise_ratio", check=1)
@pytest.mark.parametrize("bits", [2, 4, 6])
def test_divided_bits_lose_no_more_than_the_same_bits_everywhere(bits: int) -> None:
    """At most as many bytes, at most as much lost; and less where there are layers to divide among."""
    made, better = LayerwiseBits(bits), 0
    for layers in recorded() + recorded(deep=True):
        flat = [layer.reshape(-1) for layer in layers]
        widths = made.divide(flat)
        assert sum(made._bytes(x.numel(), w) for x, w in zip(flat, widths, strict=True)) <= sum(
            made._bytes(x.numel(), bits) for x in flat
        )
        errors = [dict(zip(WIDTHS, made.errors(x), strict=True)) for x in flat]
        divided = math.fsum(e[w] for e, w in zip(errors, widths, strict=True))
        uniform = math.fsum(e[bits] for e in errors)
        assert divided <= uniform
        better += divided < uniform
    assert better > len(recorded(deep=True)) / 2


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_error_curve_is_what_is_lost(bits: int) -> None:
    x, made = torch.randn(300, generator=torch.Generator().manual_seed(0)) ** 3, LayerwiseBits(bits, bucket=100)
    expected = dict(zip(WIDTHS, made.errors(x), strict=True))
    assert made.divide([x]) == [bits] and sorted(expected.values(), reverse=True) == list(expected.values())
    assert energy(meet(made, [x])[0].result - x) == pytest.approx(expected[bits], rel=1e-4)


@pytest.mark.technique("layerwise_ratio", check=2)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.integers(1, 10), min_size=2, max_size=7),
    st.integers(1, 50),
    st.data(),
)
def test_equal_curves_share_the_budget_equally(layers: int, falls: list[int], step: int, more: Any) -> None:
    """Of a convex curve; what is left for less than all makes no more than one step of difference."""
    errors = [0, *itertools.accumulate(sorted(falls))]
    curve = [(step * k, float(e)) for k, e in enumerate(reversed(errors))]
    every = more.draw(st.integers(0, len(curve) - 1))
    assert spend([curve] * layers, layers * curve[every][0]) == [every] * layers
    uneven = spend([curve] * layers, more.draw(st.integers(0, layers * curve[-1][0])))
    assert max(uneven) - min(uneven) <= 1


@pytest.mark.technique("layerwise_ratio", check=2)
@given(st.integers(2, 6), st.integers(2, 60), st.data())
@settings(max_examples=40, deadline=None)
def test_equal_layers_send_equally_much(layers: int, length: int, more: Any) -> None:
    """The same values in another order: as many places in each layer; and the same bits."""
    each = more.draw(st.integers(1, length))
    draw = torch.Generator().manual_seed(length)
    values = torch.randperm(length, generator=draw) + 1.0
    shuffled = [values[torch.randperm(length, generator=draw)] for _ in range(layers)]
    places = largest(torch.cat(shuffled), layers * each)
    assert torch.bincount(places // length, minlength=layers).tolist() == [each] * layers
    assert len(set(LayerwiseBits(5).divide(shuffled))) == 1


@given(
    st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 30),
)
@settings(max_examples=80, deadline=None)
def test_what_is_spent_fits_and_no_single_step_more_would(falls: list[list[int]], budget: int) -> None:
    curves = [[(3 * k, sum(row[k:])) for k in range(len(row) + 1)] for row in falls]
    chosen = spend(curves, budget)
    spent = sum(curve[to][0] for curve, to in zip(curves, chosen, strict=True))
    assert spent <= budget
    for curve, to in zip(curves, chosen, strict=True):
        further = [e for nbytes, e in curve[to + 1 :] if spent - curve[to][0] + nbytes <= budget]
        assert all(e >= curve[to][1] for e in further)
    convex = all(sorted(row, reverse=True) == row for row in falls)
    if convex:  # then greedy steps of one price are the best there is
        paid = [c for c in itertools.product(*map(range, map(len, curves))) if sum(c) * 3 <= budget]
        assert error_of(curves, chosen) == pytest.approx(min(error_of(curves, c) for c in paid), abs=1e-9)


def test_what_is_not_finite_is_sent_first() -> None:
    small, large = torch.full((64,), 1e-3), torch.full((64,), 10.0) * torch.arange(64)
    small[5] = math.inf
    assert LayerwiseBits(2).divide([small, large])[0] > 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_message_tells_layers_apart(workers: int) -> None:
    made = LayerwiseBits(3, bucket=64)
    spec = TensorSpec("a+b+c", (1300,), torch.float32, parts=(1000, 200, 100))
    draw = torch.Generator().manual_seed(1)
    scale = torch.cat([torch.full((n,), s) for n, s in zip(spec.parts, (0.01, 1.0, 30.0), strict=True)])
    inputs = [torch.randn(1300, generator=draw) * scale for _ in range(workers)]
    messages: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(made, inputs, [made.init(spec) for _ in inputs], payloads=messages)
    for (_, payload), *_ in messages:
        assert payload.numel() <= made.payload_bytes(spec, workers)
        assert payload[0] < payload[2], "the layer of large gradients has more bits"
    mean = torch.stack([o.sent for o in outcomes if o.sent is not None]).mean(0)
    torch.testing.assert_close(outcomes[0].result, mean)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "nbytes"), [("layerwise_ratio", 8 * 25), ("flat+layerwise_bits(2)+ef / sequential", None)]
)
def test_whole_models_are_divided_and_learn(text: str, nbytes: int | None) -> None:
    """In a run: the message's bytes, and the end beside that of all gradients as they are."""
    end = trained(text, 120, 16, sgd(0.3), workers=2)
    assert end.accuracy >= trained("bsp", 120, 16, sgd(0.3), workers=2).accuracy - 4
    if nbytes is not None:
        assert end.sent_bytes == 120 * nbytes


@given(st.floats(-0.01, 1), st.integers(1, 10**8), st.integers(2, 1000), st.floats(0, 1e-3), st.floats(1e-12, 1e-6))
@settings(max_examples=100, deadline=None)
def test_a_hidden_density_hides(hide: float, n: int, workers: int, a: float, b: float) -> None:
    rho = hidden_density(hide, n, workers, a, b)
    takes = math.log2(workers) * a + 2 * (workers - 1) * b * n * rho
    assert 0.001 <= rho <= 1
    assert rho == 0.001 or takes <= hide + 1e-9
    assert rho == 1 or takes >= hide - 1e-9
    assert hidden_density(hide, n, 1, a, b) == 1.0


def test_joined_lengths_reach_the_compressor() -> None:
    def body() -> float:
        model: Any = network(0)
        model, optimizer = laconic.distribute(
            model, torch.optim.SGD(model.parameters(), lr=0.1), "flat+layerwise_bits / sequential"
        )
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        model(torch.ones(2, 64)).square().sum().backward()
        optimizer.step()
        return connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    made = LayerwiseBits()
    budget = made.payload_bytes(TensorSpec("", (2410,), torch.float32, parts=(2048, 32, 320, 10)), 2)
    assert laconic.simulate(body, 2).results[0] <= budget


def test_a_network_without_a_price_per_element_hides_all_or_next_to_nothing() -> None:
    assert hidden_density(0.1, 10**6, 4, 0.01, 0.0) == 1.0
    assert hidden_density(0.1, 10**6, 4, 0.06, 0.0) == 0.001
    assert hidden_density(0.1, 1000, 4, 0.02, 1e-5, least=0.2) == pytest.approx(1.0)
    assert hidden_density(0.1, 1000, 4, 0.02, 2e-5) == pytest.approx(0.06 / 0.12)
