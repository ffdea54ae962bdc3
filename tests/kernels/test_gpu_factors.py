"""Products with thin factors and orthonormal columns in Triton: as near to the exact ones as torch's own, every time
the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu import factor_plans, factors, wide_factors
from laconic.kernels.lists import packed
from tests.kernels.on import DEVICE, gpu, misaligned, poisoned, same, tensor

SHAPES = [(20, 30, 2), (1, 5, 1), (7, 1, 1), (35, 264, 4), (70, 64, 3), (33, 35, 8)]
WIDE = [(70, 132, 32), (33, 35, 16), (65, 200, 9), (40, 64, 33), (5, 7, 5), (20, 30, 2)]


def drawn(shape: tuple[int, int, int], kind: str = "normal") -> tuple[Tensor, Tensor, Tensor]:
    """A matrix and factors for either side."""
    n, m, r = shape
    return (
        tensor(kind, n * m, n).view(n, m),
        tensor("normal", m * r, m).view(m, r),
        tensor("normal", n * r, r).view(n, r),
    )


def near(found: Tensor, matrix: Tensor, factor: Tensor) -> bool:
    """Within what rounding makes of float32's sums as long, if it is as often up as down."""
    exact = matrix.double() @ factor.double()
    bound = matrix.abs().double() @ factor.abs().double() * 2**-24 * (4 + matrix.shape[1] ** 0.5)
    return bool(((found - exact).abs() <= bound).all()) and found.shape == exact.shape


@pytest.mark.long
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant", "zero"])
@pytest.mark.parametrize("alone", [True, False])
def test_products_are_near_the_exact_ones(kind: str, alone: bool) -> None:
    shapes = [*SHAPES, *WIDE] if kind == "normal" and alone else SHAPES[:4]
    matrices, right, left = map(list, zip(*(drawn(shape, kind) for shape in shapes), strict=True))
    lists = (
        [([m], [q], [p]) for m, q, p in zip(matrices, right, left, strict=True)] if alone else [(matrices, right, left)]
    )
    for ms, qs, ps in lists:
        with poisoned():
            found, turned = gpu.left_products(ms, qs), gpu.right_products(ms, ps)
        assert all(near(f, m, q) for f, m, q in zip(found, ms, qs, strict=True))
        assert all(near(f, m.T, p) for f, m, p in zip(turned, ms, ps, strict=True))
        assert all(f.is_contiguous() for f in [*found, *turned])


@pytest.mark.parametrize("shapes", [WIDE[:3], WIDE])
def test_products_with_wide_factors_are_near_the_exact_ones(shapes: list[tuple[int, int, int]]) -> None:
    ms, qs, ps = map(list, zip(*(drawn(shape) for shape in shapes), strict=True))
    with poisoned():
        found, turned = gpu.left_products(ms, packed(qs)), gpu.right_products(ms, packed(ps))
    assert all(near(f, m, q) for f, m, q in zip(found, ms, qs, strict=True))
    assert all(near(f, m.T, p) for f, m, p in zip(turned, ms, ps, strict=True))
    assert found.flat.numel() == sum(n * r for n, _, r in shapes)  # as they are sent: nothing lies between them


@pytest.mark.long
def test_products_are_every_time_the_same() -> None:
    ms, qs, ps = map(list, zip(*(drawn(shape) for shape in [(20, 30, 4), (33, 64, 4)]), strict=True))
    for product, thin in ((gpu.left_products, qs), (gpu.right_products, ps)):
        assert all(same(a, b) for a, b in zip(product(ms, thin), product(ms, thin), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("shape", [(130, 516, 4), (130, 516, 20)])
def test_spans_are_added_in_their_order(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, q, p = drawn(shape)
    for programs in (1, 64):
        monkeypatch.setattr(factors, "_PROGRAMS", programs)
        monkeypatch.setattr(wide_factors, "LEFT_PROGRAMS", programs)
        monkeypatch.setattr(wide_factors, "RIGHT_PROGRAMS", programs)
        with poisoned():
            left, right = gpu.left_products([matrix], [q]), gpu.right_products([matrix], [p])
        assert near(left[0], matrix, q) and near(right[0], matrix.T, p)
    assert factor_plans.planned.cache_info().currsize > 1


def test_matrices_may_begin_anywhere_and_lie_anyhow() -> None:
    matrix, q, p = drawn((33, 132, 4))
    for m in (misaligned(matrix.view(-1)).view(matrix.shape), matrix.T.contiguous().T, matrix.double()):
        q_, p_ = q.to(m.dtype), p.to(m.dtype)
        assert near(gpu.left_products([m, m], [q_, misaligned(q_.view(-1)).view(q.shape)])[1], m, q_)
        assert near(gpu.right_products([m], [p_])[0], m.T, p_)
    wide = tensor("normal", 132 * 65).view(132, 65)
    assert near(gpu.left_products([matrix], [wide])[0], matrix, wide)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_its_own_row_and_column_alone(value: float) -> None:
    matrix, q, p = drawn((35, 70, 3))
    matrix[34, 69] = value
    (left,), (right,) = gpu.left_products([matrix], [q]), gpu.right_products([matrix], [p])
    assert left[:34].isfinite().all() and not left[34].isfinite().any()
    assert right[:69].isfinite().all() and not right[69].isfinite().any()
    q[0, 1] = value
    (left,) = gpu.left_products([matrix], [q])
    assert left[:34, ::2].isfinite().all() and not left[:, 1].isfinite().any()


# ---------------------------------------------------------------------------------------------- orthonormal columns


def orthonormal(p: Tensor) -> bool:
    """Or nothing."""
    found = (p != 0).any(dim=0)
    return bool((p.double().T @ p.double() - torch.diag(found.double())).abs().max() < 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("alone", [True, False])
def test_columns_are_the_references(alone: bool) -> None:
    shapes = [(20, 2), (1, 1), (4, 4), (1030, 3), (512, 4)]
    given = [tensor("normal", n * r, n).view(n, r) for n, r in shapes]
    for ps in (
        [*([p] for p in given), [tensor("normal", 640).view(40, 16)], [tensor("normal", 300 * 32).view(300, 32)]]
        if alone
        else [given]
    ):
        with poisoned():
            found = gpu.orthogonalised(ps)
        for p, mine in zip(ps, found, strict=True):
            (exact,) = reference.orthogonalised([p.double()])
            torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5 if len(p) > p.shape[1] else 1e-3)
            assert orthonormal(mine) and mine.shape == p.shape
    moved = misaligned(given[3].view(-1)).view(given[3].shape)  # bits must not depend on where a worker has it
    assert same(gpu.orthogonalised([moved])[0], gpu.orthogonalised(given[3:])[0])


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_columns_that_depend_on_others_become_nothing(scale: float) -> None:
    p = scale * tensor("normal", 520 * 8).view(520, 8)
    p[:, 2] = 3 * p[:, 0] - p[:, 1]
    p[:, 4] = 0
    p[:, 6] = p[:, 5] * (1 + 2**-20)
    (found,) = gpu.orthogonalised([p])
    assert (found != 0).any(dim=0).tolist() == [True, True, False, True, False, True, False, True]
    assert orthonormal(found)
    torch.testing.assert_close(found, reference.orthogonalised([p])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_nearly_dependent_columns_are_still_told_apart() -> None:
    """A hundred times what is taken for rounding."""
    p = tensor("normal", 520 * 3).view(520, 3)
    p[:, 1] = p[:, 0] + 1e-4 * p[:, 1]
    (found,) = gpu.orthogonalised([p])
    assert orthonormal(found) and (found != 0).any(dim=0).all()


@pytest.mark.long
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_columns_that_are_not_finite_become_nothing_and_harm_no_other(value: float) -> None:
    p = tensor("normal", 520 * 4).view(520, 4)
    p[77, 1] = value
    (found,) = gpu.orthogonalised([p])
    torch.testing.assert_close(found, reference.orthogonalised([p])[0], rtol=1e-4, atol=1e-5)
    assert not found[:, 1].any() and orthonormal(found)


def test_wide_or_other_factors_are_the_references() -> None:
    for p in (tensor("normal", 100 * 65).view(100, 65), tensor("normal", 80).view(20, 4).double()):
        assert same(gpu.orthogonalised([p])[0], reference.orthogonalised([p])[0])


# ---------------------------------------------------------------------------------------------- what factors make


@pytest.mark.parametrize("shapes", [SHAPES[:1], SHAPES, WIDE[:1], WIDE], ids=["one", "narrow", "one wide", "wide"])
@pytest.mark.parametrize("kept", [True, False])
def test_outer_products_and_what_they_leave(shapes: list[tuple[int, int, int]], kept: bool) -> None:
    given, rights, lefts = map(list, zip(*(drawn(shape) for shape in shapes), strict=True))
    whole = packed([torch.full_like(m, float("nan")) for m in given])
    rests = [misaligned(m.reshape(-1)).view(m.shape) for m in given] if kept else None
    gpu.outer_products(packed(lefts), packed(rights), whole, rests)
    for number, (p, q, out) in enumerate(zip(lefts, rights, whole, strict=True)):
        assert near(out, p, q.T)
        if rests is not None:
            assert same(rests[number], given[number] - out)
    alone = packed([m.clone() for m in given])
    gpu.outer_products(packed(lefts), packed(rights), None, alone)
    assert all(same(rest, m - out) for rest, m, out in zip(alone, given, whole, strict=True))


def test_what_a_product_that_is_not_finite_leaves_is_nothing() -> None:
    (rest, q, p), out = drawn((20, 30, 2)), torch.zeros(20, 30, device=DEVICE)
    p[3, 0] = float("inf")
    gpu.outer_products([p], [q], [out], [rest])
    assert not out[3].isfinite().any() and not rest[3].any() and rest[:3].all()


@pytest.mark.parametrize("ranks", [(3, 3), (4, 4, 4), (32, 20), (1,)])
def test_columns_that_are_zero_or_not_finite_are_not_taken(ranks: tuple[int, ...]) -> None:
    new = [tensor("normal", 700 * r, r).view(700, r) for r in ranks]
    new[0][:, 0] = 0
    new[-1][699, -1] = float("nan")
    if ranks[0] > 2:
        new[0][0, 1] = float("-inf")
        new[0][:699, 2] = 0  # one value is enough
    old = [tensor("normal", 700 * r, 9).view(700, r) for r in ranks]
    kept, expected = packed([x.clone() for x in old]), [x.clone() for x in old]
    gpu.replace_columns(kept, packed(new))
    reference.replace_columns(expected, new)
    assert all(same(a, b) for a, b in zip(kept, expected, strict=True))
    assert same(kept[0][:, 0], old[0][:, 0]) and (len(ranks) == 1 or same(kept[1][:, 0], new[1][:, 0]))


@pytest.mark.skipif(DEVICE == "cpu", reason="on a GPU only: the interpreter takes too long")
@pytest.mark.parametrize(
    "shape",
    [(8192, 4096, 4), (100, 200_000, 8), (200_000, 100, 16), (3000, 4001, 1), (3072, 768, 32), (50_257, 768, 64)],
)
def test_large_matrices(shape: tuple[int, int, int]) -> None:
    matrix, q, p = drawn(shape)
    assert near(gpu.left_products([matrix], [q])[0], matrix, q)
    assert near(gpu.right_products([matrix], [p])[0], matrix.T, p)
    assert orthonormal(gpu.orthogonalised([p])[0])
