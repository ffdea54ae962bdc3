"""IntSGD: what its authors' program gives, integers only on the wire, an unbiased mean, and training in int8."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.integers import IntSGD, scale
from laconic.runtime.meeting import Meeting
from tests.compression.table import KINDS, meet, tensor
from tests.data import fixture
from tests.sync import digits


@pytest.mark.evidence("intsgd", recording="intsgd.npz")
@pytest.mark.parametrize("case", ["int8_P2", "int8_P4", "int32_P2"])
def test_the_authors_program_sends_and_scales_the_same(case: str) -> None:
    """Integers and their sums exactly, among them those that are cut; the first step is an exact mean."""
    kept = {key: torch.from_numpy(value) for key, value in fixture("intsgd.npz").items() if key.startswith(case)}
    grads, alphas = kept[f"{case}_grad"], kept[f"{case}_alpha"]
    made = IntSGD(bits=int(case[3:].split("_")[0]), rounding="nearest")
    states = None
    for step in range(grads.shape[1]):
        handed: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, list(grads[:, step]), states, step, payloads=handed)
        states = [outcome.state for outcome in outcomes]
        torch.testing.assert_close(outcomes[0].result, kept[f"{case}_out"][step], rtol=1e-5, atol=1e-6)
        norm = float(states[0]["norm"])
        assert norm == pytest.approx(float(kept[f"{case}_r"][step]), rel=1e-5)
        assert scale(norm, grads.shape[2], len(grads)) == pytest.approx(float(alphas[step]), rel=1e-5)
        if step:
            decoded = torch.stack([whole for ((_, whole),) in handed])
            assert torch.equal(decoded, kept[f"{case}_ints"][:, step - 1])
            assert torch.equal(decoded.sum(dim=0, dtype=decoded.dtype), kept[f"{case}_sum"][step - 1])


@pytest.mark.technique("intsgd", check=1)
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_integers_alone_cross_the_wire_and_the_scale_is_not_sent(bits: int, size: int) -> None:
    made, states = IntSGD(bits=bits), None
    kind = torch.int8 if bits == 8 else torch.int32
    for step in range(12):
        inputs = [(1 + step) * tensor("heavy", seed=100 * step + rank) for rank in range(size)]
        handed: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=handed)
        states = [outcome.state for outcome in outcomes]
        for decoded in handed:
            assert [(how, part.dtype) for how, part in decoded] == [("Reduce", torch.float32 if step == 0 else kind)]
        norms = {state["norm"].view(torch.int32).item() for state in states}
        assert len(norms) == 1, "the same bits everywhere"
        assert len({scale(float(state["norm"]), inputs[0].numel(), size) for state in states}) == 1


@pytest.mark.parametrize("value", [0.25, -0.25, 3.9, -3.1])
@pytest.mark.parametrize("seed", range(2))
def test_a_value_is_rounded_to_its_neighbours_with_the_right_chances(value: float, seed: int) -> None:
    found = IntSGD().rounded(torch.full((40_000,), value), Meeting(0, 2, seed, "x"))
    assert found.unique().tolist() == [math.floor(value), math.ceil(value)]
    assert float(found.mean()) == pytest.approx(value, abs=0.01)  # four deviations


@pytest.mark.long
@pytest.mark.technique("intsgd", check=2)
@pytest.mark.parametrize("bits", [8, 32])
def test_many_encodings_have_the_true_mean_and_each_is_near(bits: int) -> None:
    size, draws = 2, 10_000
    inputs = [tensor("normal", (12,), seed) for seed in range(size)]
    mean = torch.stack(inputs).double().mean(dim=0)
    norm = 0.3 * mean.square().sum().float()  # no entry is cut
    alpha = scale(float(norm), 12, size)
    assert alpha * float(torch.stack(inputs).abs().max()) < 127 / size - 1
    made = IntSGD(bits=bits)
    states = [{"norm": norm} for _ in inputs]
    found = torch.stack([meet(made, inputs, states, step)[0].result for step in range(draws)]).double()
    assert float((found - mean).abs().max()) <= 1 / alpha * (1 + 1e-6)
    assert bool(((found.mean(dim=0) - mean).abs() <= 4 * found.std(dim=0) / math.sqrt(draws)).all())


@pytest.mark.technique("intsgd", check=3)
@pytest.mark.long
def test_int8_trains_as_well_with_a_quarter_of_the_bytes() -> None:
    """Every step but the first, which is exact, sends a quarter."""
    steps = 250

    def mean(strategy: str) -> tuple[float, float]:
        runs = [digits.trained(strategy, steps, 16, digits.sgd(0.5), seed=seed) for seed in range(2)]
        return sum(run.accuracy for run in runs) / 2, runs[0].sent_bytes / steps

    (bsp, dense), (low, sent) = mean("bsp"), mean("intsgd")
    assert bsp > 93
    assert low >= bsp - 1
    assert steps * sent == pytest.approx(dense + (steps - 1) * dense / 4)


# ---------------------------------------------------------------------------------------------- edges


@pytest.mark.long
@pytest.mark.parametrize("bits", [8, 32])
@given(
    st.integers(1, 100), st.sampled_from([1e-3, 1.0, 1e12, 1e30, math.inf]), st.sampled_from(["nearest", "stochastic"])
)
@settings(max_examples=60, deadline=None)
def test_the_sum_of_all_workers_fits_whatever_they_bring(bits: int, size: int, largest: float, rounding: str) -> None:
    """Each integer is within its share, also where float32 has no such number; so a sum cannot wrap around."""
    made, half = IntSGD(bits=bits, rounding=rounding), 2 ** (bits - 1)
    x = torch.tensor([largest, -largest, 0.0])
    handed: list[list[tuple[str, Tensor]]] = []
    meet(made, [x] * size, [{"norm": torch.ones(())}] * size, payloads=handed)
    sums = sum(whole.long() for ((_, whole),) in handed)
    assert -half <= int(sums.min()) <= 0 <= int(sums.max()) < half


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_integers_are_at_most_half_a_step_away(kind: str) -> None:
    x = tensor(kind)
    norm = x.double().square().sum().float() + 1e-3
    (outcome,) = meet(IntSGD(bits=32, rounding="nearest"), [x], [{"norm": norm}])
    assert float((outcome.result - x).abs().max()) <= 0.5001 / scale(float(norm), x.numel(), 1)


def test_the_scale_is_the_papers() -> None:
    """α² = n/(2N·r + ε²) with ε = 1e-8, so that nothing is divided by zero where nothing has moved yet."""
    assert scale(0.5, 400, 4) == pytest.approx(10.0)
    assert scale(0.0, 400, 4) == pytest.approx(20 * 1e8)
    assert scale(1e-16, 9, 1) == pytest.approx(math.sqrt(9 / 3e-16))
