"""DeMo: the authors' numbers, the transform, and the identities of a momentum that is its own error memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.demo import DeMo
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import meet, spec_of, tensor
from tests.compression.test_momentum import train
from tests.data import fixture

SHAPES = [(24, 20), (64, 128), (36,), (67,), (7, 3, 3, 3), (130, 2), (1,)]


@pytest.mark.evidence("demo", recording="demo.npz")
@pytest.mark.parametrize("tensor", [0, 1])
@pytest.mark.parametrize("case", ["c0", "c1"])
def test_the_authors_program_sends_keeps_and_steps_the_same(case: str, tensor: int) -> None:
    kept = {k: torch.from_numpy(v.copy()) for k, v in fixture("demo.npz").items() if k.startswith(case)}
    decay, k, chunk, weight_decay, rate = kept[f"{case}_params"].tolist()
    made = DeMo(k=int(k), chunk=int(chunk), decay=decay)
    grads, x = kept[f"{case}_grad_{tensor}"], kept[f"{case}_x0_{tensor}"]
    states = [made.init(spec_of(x)) for _ in range(2)]
    for step in range(grads.shape[1]):
        handed: list[list[tuple[str, torch.Tensor]]] = []
        outcomes = meet(made, list(grads[:, step]), states, step, rate, payloads=handed)
        before, states = states, [outcome.state for outcome in outcomes]
        for worker, outcome in enumerate(outcomes):
            near: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
            if f"{case}_coef_{tensor}" in kept:
                rows = made.cosines(decay * before[worker]["momentum"] + rate * grads[worker, step])
                coefficients = kept[f"{case}_coef_{tensor}"][worker, step]
                torch.testing.assert_close(rows.reshape(-1), coefficients.reshape(-1), **near)
            length = math.prod(made.tile(tuple(x.shape)))
            places, values = made.read(handed[worker][0][1], x.numel() // length, length)
            theirs, order = kept[f"{case}_idx_{tensor}"][worker, step].view(len(places), -1).long().sort(dim=1)
            assert torch.equal(places, theirs)
            decoded = kept[f"{case}_val_{tensor}"][worker, step].view(len(places), -1).gather(1, order)
            torch.testing.assert_close(values, decoded, **near)
            torch.testing.assert_close(outcome.sent, kept[f"{case}_sent_{tensor}"][worker, step], **near)
            torch.testing.assert_close(states[worker]["momentum"], kept[f"{case}_delta_{tensor}"][worker, step], **near)
        assert torch.equal(outcomes[0].result, kept[f"{case}_u_{tensor}"][step].sign())
        x = x * (1 - rate * weight_decay) - rate * outcomes[0].result
        torch.testing.assert_close(x, kept[f"{case}_x_{tensor}"][step], **near)


@pytest.mark.technique("demo", check=1)
@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 1000))
def test_cosines_keep_everything(shape: tuple[int, ...], seed: int) -> None:
    made, x = DeMo(), tensor("heavy", shape, seed)
    rows = made.cosines(x)
    most = float(x.abs().max())
    torch.testing.assert_close(made.restored(rows, x.shape), x, rtol=1e-5, atol=1e-5 * most)
    torch.testing.assert_close(rows.norm(), x.norm(), rtol=1e-5, atol=0)


@pytest.mark.technique("demo", check=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_left_and_what_was_sent_are_the_momentum(shape: tuple[int, ...]) -> None:
    made, rate = DeMo(k=3), 0.1
    states = [made.init(TensorSpec("x", shape, torch.float32)) for _ in range(3)]
    for step in range(6):
        inputs = [tensor("normal", shape, 10 * step + r) for r in range(3)]
        before = [state["momentum"].clone() for state in states]
        outcomes = meet(made, inputs, states, step, rate)
        states = [outcome.state for outcome in outcomes]
        for old, x, outcome in zip(before, inputs, outcomes, strict=True):
            assert outcome.sent is not None
            torch.testing.assert_close(
                outcome.state["momentum"] + outcome.sent, 0.999 * old + rate * x, rtol=1e-5, atol=1e-6
            )


@pytest.mark.technique("demo", check=2)
@pytest.mark.parametrize("shape", [(24, 20), (64, 64), (36,)])
def test_sending_everything_leaves_nothing_and_steps_by_the_mean_gradients_sign(shape: tuple[int, ...]) -> None:
    made = DeMo(k=64 * 64)
    states = [made.init(TensorSpec("x", shape, torch.float32)) for _ in range(3)]
    for step in range(4):
        inputs = [tensor("normal", shape, 10 * step + r) for r in range(3)]
        outcomes = meet(made, inputs, states, step, 0.1)
        states = [outcome.state for outcome in outcomes]
        assert max(float(state["momentum"].abs().max()) for state in states) < 1e-6
        mean = torch.stack(inputs).mean(0)
        clear = mean.abs() > 1e-4
        assert torch.equal(outcomes[0].result[clear], mean.sign()[clear])


@pytest.mark.technique("demo", check=3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 5, 32])
def test_payload_is_values_and_places_in_a_tile(shape: tuple[int, ...], k: int) -> None:
    made, x = DeMo(k=k), tensor("normal", shape)
    length = math.prod(made.tile(shape))
    count = x.numel() // length * min(k, length)
    handed: list[list[tuple[str, torch.Tensor]]] = []
    meet(made, [x], payloads=handed)
    expected = math.ceil(count * (32 + math.ceil(math.log2(length))) / 8)
    assert handed[0][0][1].nbytes == made.payload_bytes(spec_of(x), 1) == expected


def test_sides_of_tiles() -> None:
    """The largest divisors up to 64."""
    assert [DeMo().tile(shape) for shape in SHAPES] == [(24, 20), (64, 64), (36,), (1,), (7, 27), (26, 2), (1,)]


@pytest.mark.long
@pytest.mark.technique("demo", check=3)
def test_workers_step_alike_with_momenta_of_their_own() -> None:
    def momenta(model: Any, optimizer: Any) -> float:
        assert optimizer.param_groups[0]["momentum"] == 0.0, "it is taken over"
        memory = optimizer.session.partitions[0].tiers[0].memory
        return float(sum(state["momentum"].abs().sum() for state in memory.values()))

    make = lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)  # noqa: E731
    parameters, sent, _, seen = train("demo(k=4)", 10, 3, make, probe=momenta)
    assert all(torch.equal(p, parameters[0]) for p in parameters)
    assert all(value > 0 for value in seen)
    assert len(set(sent)) == 1


def test_a_tile_that_is_not_finite_is_seen_and_forgotten() -> None:
    made = DeMo(k=4)
    x = tensor("normal")
    x[3, 4] = math.inf
    outcomes = meet(made, [x, tensor("normal", seed=1)])
    assert not outcomes[1].result.isfinite().any()
    assert all(bool(outcome.state["momentum"].isfinite().all()) for outcome in outcomes)
