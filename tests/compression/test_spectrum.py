"""Linear maps: Fourier coefficients, a basis that all workers share, singular vectors at random."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.atomo import Atomo, atoms, keep_probabilities, matrix_sides
from laconic.compression.codes import range_float
from laconic.compression.fixed_basis import PCA, leading
from laconic.compression.payload import unpack
from laconic.compression.spectrum import FFTSparse
from laconic.runtime.meeting import Meeting
from tests.compression.table import meet, spec_of, tensor
from tests.data import fixture

MEET = Meeting(0, 1, 0, "x")


@pytest.mark.long
@given(st.integers(2, 400), st.floats(0.01, 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("fft_sparse", check=1)
def test_the_error_is_the_energy_of_what_was_dropped(numel: int, ratio: float, seed: int) -> None:
    """Parseval's identity: coefficients inside count twice, the first (and of even lengths the last) once."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    made = FFTSparse(ratio=ratio, bits=32)
    sent = made.decode(made.encode(x, MEET), x.shape, MEET)
    spectrum = torch.fft.rfft(x.double())
    energy = spectrum.abs().square() * 2
    energy[0] /= 2
    if numel % 2 == 0:
        energy[-1] /= 2
    k = math.ceil(ratio * len(spectrum) - 1e-9)
    dropped = energy[torch.fft.rfft(x).abs().argsort(descending=True)[max(1, k) :]].sum() / numel
    error = (x - sent).double().square().sum()
    assert error.item() == pytest.approx(dropped.item(), rel=1e-3, abs=1e-8 * x.square().sum().item())


@given(st.integers(1, 600), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
@pytest.mark.technique("fft_sparse", check=2)
def test_all_coefficients_in_full_width_are_the_gradient(numel: int, seed: int) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    made = FFTSparse(ratio=1.0, bits=32)
    torch.testing.assert_close(made.decode(made.encode(x, MEET), x.shape, MEET), x, atol=1e-5, rtol=1e-5)


@pytest.mark.long
@given(st.integers(1, 300), st.integers(4, 32), st.floats(0.1, 12), st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("fft_sparse", check=2)
def test_a_range_float_is_off_by_its_last_bit_at_most(count: int, width: int, spread: float, seed: int) -> None:
    """Relative error 2^-m, and zero stays zero; what lies below the range that fits is zero."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=draw) * 10 ** (spread * torch.randn(count, generator=draw)).clamp(1e-30, 1e30)
    values[::5] = 0
    header, packed = range_float.encode(values, width)
    read = range_float.decode(header, packed, width, count)
    mantissa, least = int(header[2]), float(header[0])
    inside = values.abs() >= least
    assert bool((read[~inside] == 0).all())
    off = (read[inside].double() - values[inside]).abs() / values[inside].abs()
    assert values.abs().max() == 0 or float(off.max()) <= 2.0**-mantissa
    assert len(packed) == -(-count * width // 8)


@pytest.mark.parametrize("numel", [1, 2, 99, 1000])
@pytest.mark.parametrize(("ratio", "width"), [(0.15, 10), (1.0, 7), (0.01, 32)])
@pytest.mark.technique("fft_sparse", check=3)
def test_bytes_of_a_spectrum(numel: int, ratio: float, width: int) -> None:
    made, x = FFTSparse(ratio=ratio, bits=width), torch.randn(numel, generator=torch.Generator().manual_seed(1))
    coefficients = numel // 2 + 1
    kept = max(1, math.ceil(ratio * coefficients - 1e-9))
    assert len(made.encode(x, MEET)) == -(-coefficients // 8) + -(-2 * width * kept // 8) + 12


# ------------------------------------------------------------------------------------------------ a fixed basis


@pytest.mark.technique("pca_awfl", check=1)
def test_gradients_inside_the_basis_are_sent_whole() -> None:
    """Three workers, all gradients in four directions of a hundred: accelerated descent is the uncompressed one."""
    draw = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(100, 4, generator=draw)).Q
    centres = [plane @ torch.randn(4, generator=draw) for _ in range(3)]
    made, weights = PCA(rank=4, samples=6), {}
    for name in ("whole", "pca"):
        x = torch.zeros(100, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.05, momentum=0.9, nesterov=True)
        states = [made.init(spec_of(x)) for _ in centres]
        for step in range(60):
            own = [x.detach() - c for c in centres]
            if name == "pca":
                outcomes = meet(made, own, states, step)
                states = [outcome.state for outcome in outcomes]
            x.grad = torch.stack(own).mean(0) if name == "whole" else outcomes[0].result
            optimizer.step()
        weights[name] = x.detach()
    torch.testing.assert_close(weights["pca"], weights["whole"], atol=1e-5, rtol=1e-4)


def test_the_first_steps_are_exact_until_as_many_gradients_are_kept_as_samples() -> None:
    """And the basis is found in the step after: of these alone, of which there are fewer than the rank here."""
    made, draw = PCA(rank=4, samples=3), torch.Generator().manual_seed(1)
    states = [made.init(spec_of(torch.zeros(4, 5))) for _ in range(2)]
    for step in range(5):
        inputs = [torch.randn(4, 5, generator=draw) for _ in states]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        exact = torch.allclose(outcomes[0].result, torch.stack(inputs).mean(0), atol=1e-6)
        assert exact == (step < made.samples)
        assert [len(state["seen"]) for state in states] == [step + 1 if exact else 0] * 2
        assert all(bool(state["basis"].numel()) != exact for state in states)


@pytest.mark.technique("pca_awfl", check=2)
def test_four_bytes_a_direction_and_the_error_of_a_projection() -> None:
    made, draw = PCA(rank=5, samples=7), torch.Generator().manual_seed(2)
    gradients = [[torch.randn(8, 9, generator=draw) for _ in range(3)] for _ in range(10)]
    states = [made.init(spec_of(x)) for x in gradients[0]]
    for step, inputs in enumerate(gradients):
        messages: list[list[tuple[str, torch.Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=messages)
        states = [outcome.state for outcome in outcomes]
        if step > made.samples:
            assert all(sum(x.nbytes for _, x in sent) == 4 * 5 for sent in messages)
            basis, mean = states[0]["basis"], torch.stack(inputs).mean(0).view(-1)
            torch.testing.assert_close(basis.T @ basis, torch.eye(5), atol=1e-5, rtol=0)
            left = (mean - basis @ (basis.T @ mean)).norm()
            torch.testing.assert_close((mean - outcomes[0].result.view(-1)).norm(), left, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------ ATOMO


@pytest.mark.long
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40), st.floats(0.5, 50))
@settings(max_examples=150, deadline=None)
@pytest.mark.technique("atomo", check=1)
def test_probabilities_add_up_to_the_budget(sizes: list[float], budget: float) -> None:
    kept = keep_probabilities(torch.tensor(sizes), budget)
    assert bool((kept > 0).all()) and bool((kept <= 1).all())
    assert kept.sum().item() == pytest.approx(min(budget, len(sizes)), rel=1e-9)


@pytest.mark.long
@pytest.mark.technique("atomo", check=1)
def test_the_mean_of_many_draws_is_the_gradient() -> None:
    made, x = Atomo(budget=2), tensor("normal", (7, 5))
    draws = torch.stack([made.decode(made.encode(x, m), x.shape, m) for m in _meetings(10_000)]).double()
    deviation = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - x).abs() <= 4 * deviation + 1e-6).all())


def _meetings(count: int) -> list[Meeting]:
    return [Meeting(0, 1, step, "x") for step in range(count)]


@given(st.integers(1, 60), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("atomo", check=2)
def test_entries_with_this_budget_are_kept_as_terngrad_does(numel: int, seed: int) -> None:
    size = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).abs().double()
    kept = keep_probabilities(size, float(size.sum() / size.max()))
    torch.testing.assert_close(kept, size / size.max())


@pytest.mark.technique("atomo", check=3)
@pytest.mark.parametrize("budget", [5, 9])
def test_a_budget_of_the_whole_rank_sends_everything(budget: int) -> None:
    x = tensor("heavy", (7, 5))
    u, sizes, v = torch.linalg.svd(x, full_matrices=False)
    assert bool((keep_probabilities(sizes, budget) == 1).all())
    sent = Atomo().decode(atoms(u, sizes, v, budget, torch.full((5,), 0.999)), x.shape, MEET)
    torch.testing.assert_close(sent, x, atol=1e-5 * x.abs().max().item(), rtol=1e-5)


@pytest.mark.evidence("atomo", recording="atomo.npz")
@pytest.mark.technique("atomo", check=1)
@pytest.mark.parametrize("case", [0, 1, 2])
def test_the_published_programs_atoms(case: int) -> None:
    """Its matrices, singular values, probabilities, choices and decoded tensors, for its own draws."""
    kept = fixture("atomo.npz")
    x, budget = torch.tensor(kept[f"x_{case}"]), int(kept[f"budget_{case}"])
    assert matrix_sides(tuple(x.shape)) == tuple(kept[f"matrix_shape_{case}"])
    u, sizes, v = torch.linalg.svd(x.view(matrix_sides(tuple(x.shape))), full_matrices=False)
    torch.testing.assert_close(sizes, torch.tensor(kept[f"singular_{case}"]), atol=1e-5, rtol=1e-5)
    probabilities = torch.tensor(kept[f"prob_{case}"])
    torch.testing.assert_close(keep_probabilities(sizes, budget), probabilities, atol=1e-6, rtol=1e-5)
    draws = torch.tensor(kept[f"uniform01_{case}"][-1])
    payload = atoms(u, sizes, v, budget, draws)
    (flat,) = unpack(payload, (torch.float32, -1))
    picked = kept[f"picked_{case}"]
    assert flat.numel() == len(picked) * (1 + sum(matrix_sides(tuple(x.shape))))
    decoded = Atomo().decode(payload, x.shape, MEET)
    torch.testing.assert_close(decoded, torch.tensor(kept[f"decoded_{case}"]), atol=1e-4, rtol=1e-4)


def test_the_code_of_zero_is_zero() -> None:
    """Where all is zero, and where the smallest magnitude has no bit that the range keeps."""
    assert range_float.encode(torch.zeros(5), 8)[1].tolist() == [0] * 5
    tiny = torch.tensor([0.0, 2.0**-149, 0.0, -(2.0**-130), 2.0**-127])
    header, packed = range_float.encode(tiny, 8)
    assert packed.tolist()[0] == packed.tolist()[2] == 0
    assert range_float.decode(header, packed, 8, 5)[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("width", [4, 10, 32])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("others", [[0.0, 0.0], [-1e-30, 2.5], [math.inf, math.nan], []])
def test_what_is_not_finite_makes_all_values_of_its_range_so(bad: float, others: list[float], width: int) -> None:
    values = torch.tensor([*others, bad, *others])
    header, packed = range_float.encode(values, width)
    assert len(packed) == -(-len(values) * width // 8)
    assert range_float.decode(header, packed, width, len(values)).isnan().all()


def test_where_there_is_no_direction_the_basis_is_zero() -> None:
    """Of gradients that are all zero none is found, and of one direction no second."""
    assert not leading(torch.zeros(6, 3), 2).any()
    column = torch.tensor([[3.0], [0.0], [4.0]])
    basis = leading(torch.cat([column, -2 * column], dim=1), 2)
    torch.testing.assert_close(basis @ basis.T, column @ column.T / 25)
    assert not basis[:, 1].any()
    made, states = PCA(rank=2, samples=2), [PCA(rank=2, samples=2).init(spec_of(torch.zeros(9)))]
    for step in range(2):
        states = [meet(made, [torch.zeros(9)], states, step)[0].state]
    assert not meet(made, [torch.ones(9)], states, 2)[0].result.any(), "nothing lies in an empty basis"


@pytest.mark.parametrize(("width", "orders"), [(8, 0.3), (8, 3.0), (12, 6.0), (6, 20.0)])
def test_the_mantissa_is_as_long_as_the_range_allows(width: int, orders: float) -> None:
    values = torch.logspace(-orders / 2, orders / 2, 41) * torch.tensor([1.0, -1.0]).repeat(21)[:41]
    header, packed = range_float.encode(values, width)
    read, mantissa = range_float.decode(header, packed, width, 41), int(header[2])
    inside = values.abs() >= float(header[0])
    assert not read[~inside].any() and (bool(inside.all()) or mantissa == 0)
    assert float(((read - values) / values)[inside].abs().max()) <= 2.0**-mantissa
    steps = 2 ** (width - 1) - 1  # numbers of one sign
    exponents = math.log2(float(values.abs().max())) - math.log2(float(values.abs().min()))
    assert mantissa == 0 or steps / (exponents + 2) / 2 < 2**mantissa * 2 <= 4 * steps / exponents


def test_a_tensor_no_longer_than_the_basis_is_sent_as_it_is() -> None:
    assert [PCA(rank=4).accepts(spec_of(torch.zeros(n))) for n in (3, 4, 5)] == [False, False, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_nothing_in_a_basis(bad: float) -> None:
    columns = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    clean = columns.clone()
    columns[2, 1], clean[2, 1] = bad, 0.0
    assert torch.equal(leading(columns, 2), leading(clean, 2))
