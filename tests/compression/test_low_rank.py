"""PowerSGD: what its authors' program gives, linearity, exactness at low rank, and training at rank 2."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laconic.compression.low_rank import PowerSGD, orthogonal
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import compressor, meet, spec_of
from tests.data import fixture
from tests.sync import digits

RANKS = st.integers(1, 5)
SIDES = st.integers(6, 40)
SEEDS = st.integers(0, 10_000)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def low_rank(seed: int, rows: int, columns: int, rank: int) -> Tensor:
    """A matrix of this rank with singular values of like size."""
    left, _ = torch.linalg.qr(drawn(seed, rows, rank).double())
    right, _ = torch.linalg.qr(drawn(seed + 1, columns, rank).double())
    return (left @ right.T).float()


@pytest.mark.evidence("power_sgd", recording="power_sgd.npz")
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("tensor", [0, 1])
def test_the_authors_program_sends_and_remembers_the_same(rank: int, size: int, tensor: int) -> None:
    kept = {key: torch.from_numpy(value) for key, value in fixture("power_sgd.npz").items()}
    made = compressor(f"power_sgd({rank})+ef")
    grads = kept[f"grad_{tensor}"][:size]
    states = [made.init(spec_of(grads[0, 0])) | {"inner.q": kept[f"r{rank}_q0_{tensor}"]} for _ in range(size)]
    for step in range(grads.shape[1]):
        outcomes = meet(made, list(grads[:, step]), states, step)
        states = [outcome.state for outcome in outcomes]
        for worker, outcome in enumerate(outcomes):
            expected = kept[f"r{rank}_P{size}_out_{tensor}"][step], kept[f"r{rank}_P{size}_err_{tensor}"][worker, step]
            torch.testing.assert_close((outcome.result, outcome.state["error"]), expected, rtol=1e-5, atol=1e-5)


def test_vectors_go_uncompressed() -> None:
    kept = fixture("power_sgd.npz")
    vector = torch.from_numpy(kept["grad_2"][0, 0])
    assert not PowerSGD(rank=1).accepts(spec_of(vector))
    assert not kept["r1_P2_err_2"].any()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_matrices_that_factors_would_not_make_smaller_go_uncompressed(rank: int) -> None:
    """At equal sizes too: 4 x 4 in two factors of rank 2 has as many numbers as before."""
    taken = {
        (rows, columns)
        for rows in range(1, 10)
        for columns in range(1, 10)
        if PowerSGD(rank=rank).accepts(TensorSpec("x", (rows, columns), torch.float32))
    }
    assert taken == {
        (rows, columns)
        for rows in range(1, 10)
        for columns in range(1, 10)
        if sum(torch.empty(side, rank).numel() for side in (rows, columns)) < torch.empty(rows, columns).numel()
    }


@pytest.mark.long
@given(RANKS, SIDES, SIDES, st.integers(1, 8), SEEDS)
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("power_sgd", check=1)
def test_many_workers_send_what_one_would_send_of_the_mean(
    rank: int, rows: int, columns: int, size: int, seed: int
) -> None:
    made = PowerSGD(rank=rank)
    inputs = [drawn(seed + worker, rows, columns) for worker in range(size)]
    mean = torch.stack(inputs).mean(dim=0)
    (alone,) = meet(made, [mean])
    for outcome in meet(made, inputs):
        assert float((outcome.result - alone.result).norm()) <= 1e-5 * float(mean.norm())
        assert float((outcome.state["q"] - alone.state["q"]).norm()) <= 1e-5 * float(mean.norm())


@pytest.mark.long
@given(RANKS, st.integers(0, 5), SIDES, SIDES, SEEDS, st.sampled_from([1.0, 1e-9, 1e9]))
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("power_sgd", check=2)
def test_a_matrix_of_low_rank_arrives_as_it_is_in_one_step(
    rank: int, true: int, rows: int, columns: int, seed: int, scale: float
) -> None:
    """Also of a lower rank than there are columns, whose others are rounding. Where the first factor happens to be
    nearly blind for a direction of the matrix, float32 loses the digits that are lost there; such draws are left out.
    """
    made, x = PowerSGD(rank=rank), scale * low_rank(seed, rows, columns, min(true, rank))
    assume(made.accepts(spec_of(x)))
    state = made.init(spec_of(x))
    if true:
        seen = torch.linalg.svdvals(x.double() @ state["q"].double())[: min(true, rank)]
        assume(float(seen[0]) < 30 * float(seen[-1]))
    (outcome,) = meet(made, [x], [state])
    assert float((outcome.result - x).norm()) <= 1e-5 * float(x.norm())


@given(RANKS, SIDES, SIDES, st.integers(1, 4))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("power_sgd", check=2)
def test_the_payload_is_two_thin_factors(rank: int, rows: int, columns: int, size: int) -> None:
    made = PowerSGD(rank=rank)
    x = drawn(0, rows, columns)
    if not made.accepts(spec_of(x)):
        assert rank * (rows + columns) >= rows * columns
        return
    handed: list[list[tuple[str, Tensor]]] = []
    meet(made, [x] * size, payloads=handed)
    for sent in handed:
        assert [(kind, part.nbytes) for kind, part in sent] == [
            ("Reduce", 4 * rank * rows),
            ("Reduce", 4 * rank * columns),
        ]


def wide(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.technique("power_sgd", check=3)
@pytest.mark.long
def test_rank_two_trains_as_well_with_a_tenth_of_the_bytes() -> None:
    def mean(strategy: str) -> tuple[float, float]:
        runs = [digits.trained(strategy, 250, 16, digits.sgd(0.5), seed=seed, build=wide) for seed in range(2)]
        return sum(run.accuracy for run in runs) / 2, runs[0].sent_bytes

    (bsp, dense), (low, thin) = mean("bsp"), mean("power_sgd(2)+ef")
    assert bsp > 94
    assert low >= bsp - 1
    assert dense >= 10 * thin


# ---------------------------------------------------------------------------------------------- edges


@given(st.integers(2, 30), st.integers(1, 6), SEEDS)
@settings(max_examples=60, deadline=None)
def test_columns_are_orthonormal_or_nothing(rows: int, columns: int, seed: int) -> None:
    """Whatever is left of a column that depends on the others is not mistaken for a direction."""
    matrix = drawn(seed, rows, columns)
    if columns > 2:
        matrix[:, 2] = 3 * matrix[:, 0] - matrix[:, 1]
    p = orthogonal(matrix)
    found = (p != 0).any(dim=0)
    torch.testing.assert_close(p.T @ p, torch.diag(found.float()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("first", [0.0, float("nan"), float("inf")])
def test_a_step_that_sends_nothing_does_not_silence_the_next(first: float) -> None:
    """The factor that steps start from is kept where a step finds none: multiplied by nothing, it would stay nothing;
    not a number, it would stay that."""
    made, x = PowerSGD(rank=2), low_rank(5, 20, 30, 2)
    (outcome,) = meet(made, [torch.full_like(x, first)])
    (outcome,) = meet(made, [x], [outcome.state])
    torch.testing.assert_close(outcome.result, x, rtol=0, atol=1e-5)
