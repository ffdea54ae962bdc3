"""ACP-SGD: one factor a step, own errors, and half of PowerSGD's bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from laconic.compression.acp_sgd import Alternating
from laconic.compression.low_rank import PowerSGD
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.compression.test_low_rank import low_rank
from tests.sync import digits


@pytest.mark.technique("acp_sgd", check=1)
@pytest.mark.parametrize(("rows", "columns", "rank"), [(24, 20, 4), (40, 9, 2), (8, 60, 3)])
def test_payload_alternates_and_is_half_of_power_sgds(rows: int, columns: int, rank: int) -> None:
    made, x = compressor(f"alternating({rank})+ef"), tensor("normal", (rows, columns))
    states, counted = [made.init(spec_of(x)) for _ in range(2)], []
    for step in range(6):
        handed: list[list[tuple[str, torch.Tensor]]] = []
        outcomes = meet(
            made, [tensor("normal", (rows, columns), step + r) for r in range(2)], states, step, payloads=handed
        )
        states = [outcome.state for outcome in outcomes]
        ((way, factor),) = handed[0]
        assert way == "Reduce"
        counted.append(factor.nbytes)
    assert counted == [4 * rank * rows, 4 * rank * columns] * 3
    assert 2 * sum(counted) == 6 * PowerSGD(rank).payload_bytes(spec_of(x), 2)


@pytest.mark.long
@pytest.mark.technique("acp_sgd", check=2)
@pytest.mark.parametrize("size", [1, 3])
def test_what_was_applied_and_the_mean_error_are_what_came(size: int) -> None:
    made = compressor("alternating(3)+ef")
    states = [made.init(spec_of(tensor("normal"))) for _ in range(size)]
    applied, came = torch.zeros(2, 24, 20, dtype=torch.float64)
    for step in range(100):
        inputs = [tensor("normal", seed=100 * step + rank) for rank in range(size)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        applied += outcomes[0].result
        came += torch.stack(inputs).double().mean(0)
        error = torch.stack([state["error"] for state in states]).double().mean(0)
        torch.testing.assert_close(applied, came - error, rtol=0, atol=1e-4 * float(came.abs().max()))


@pytest.mark.long
@pytest.mark.technique("acp_sgd", check=2)
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 1000))
def test_a_constant_gradient_of_low_rank_is_sent_in_two_steps(rank: int, more: int, seed: int) -> None:
    gradient = low_rank(seed, 18, 14, rank)
    made = compressor(f"alternating({rank + more})+ef")
    states = [made.init(spec_of(gradient)) for _ in range(2)]
    for step in range(0, 8, 2):
        pair = torch.zeros_like(gradient)
        for half in (0, 1):
            outcomes = meet(made, [gradient, gradient], states, step + half)
            states = [outcome.state for outcome in outcomes]
            pair += outcomes[0].result
        assert float(states[0]["error"].abs().max()) <= 1e-5
        torch.testing.assert_close(pair, 2 * gradient, rtol=0, atol=2e-5)


def test_a_factor_that_is_not_finite_does_not_stay() -> None:
    made, x = Alternating(), tensor("normal")
    bad = x.clone()
    bad[0, 0] = torch.inf
    (first,) = meet(made, [bad])
    assert not first.result.isfinite().all()
    (second,) = meet(made, [x], [first.state], 1)
    assert second.result.isfinite().all() and second.result.any()


@pytest.mark.long
@pytest.mark.technique("acp_sgd", check=3)
def test_a_step_is_predicted_to_be_shorter_than_power_sgds() -> None:
    """On a slow network behind wait-free backpropagation, at the same rank: one exchange in place of two."""

    def seconds(strategy: str) -> float:
        def body() -> float:
            digits.train(strategy, 4, 8, digits.sgd(0.1))
            return connect().clock_seconds()

        return max(laconic.simulate(body, 4, Network.flat(4, 1e6, 1e-3), Compute(0.01, 0.02)).results)

    assert seconds("acp_sgd") < 0.9 * seconds("power_sgd(4)+ef")


@pytest.mark.technique("acp_sgd", check=3)
@pytest.mark.long
def test_rank_four_learns_digits_as_well_as_bsp() -> None:
    def mean(strategy: str) -> float:
        return sum(digits.trained(strategy, 150, 16, digits.sgd(0.5), seed=seed).accuracy for seed in range(2)) / 2

    bsp = mean("bsp")
    assert bsp > 94
    assert mean("acp_sgd") >= bsp - 1
