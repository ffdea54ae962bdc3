"""The rotation in Triton against the reference, bit by bit, and the reference against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.kernels import reference
from laconic.kernels.gpu import rotation
from laconic.kernels.reference.rotation import rotated_length, signs
from tests.kernels.on import DEVICE, KINDS, gpu, misaligned, poisoned, same, tensor

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the interpreter's
KEY = 0x9E3779B97F4A7C15


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Zeros with their signs too."""
    return same(a, b) and same(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000, 1024, 3000, 8192])
def test_rotations_are_the_references(kind: str, n: int) -> None:
    x = tensor(kind, n)
    before = x.clone()
    with poisoned():
        z = gpu.rotate(x, KEY)
    assert alike(z, reference.rotate(x, KEY))
    with poisoned():
        back, plain = gpu.rotate_back(z, KEY), gpu.hadamard(z)
    assert alike(back, reference.rotate_back(z, KEY))
    assert alike(plain, reference.hadamard(z))
    assert alike(x, before)


@pytest.mark.long
@pytest.mark.parametrize("log", [14, 16] if DEVICE == "cpu" else [14, 16, 20, 21, 22, 25, 27])
def test_later_passes_go_on_where_the_first_ended(log: int) -> None:
    x = tensor("heavy", (1 << log) - 77)
    with poisoned():
        z = gpu.rotate(x, KEY)
    assert alike(z, reference.rotate(x, KEY))
    with poisoned():
        assert alike(gpu.rotate_back(z, 3), reference.rotate_back(z, 3))


@pytest.mark.long
@given(st.integers(0, 4100), st.integers(0, 2**64 - 1))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_any_length_and_any_key(n: int, key: int) -> None:
    x = tensor("normal", max(1, n), n)[:n]
    assert alike(gpu.rotate(x, key), reference.rotate(x, key))


def test_vectors_may_begin_anywhere_and_lie_anyhow() -> None:
    x = tensor("normal", 2048)
    expected = reference.rotate(x, KEY)
    assert alike(gpu.rotate(misaligned(x), KEY), expected)
    assert alike(gpu.rotate_back(misaligned(expected, 3), KEY), reference.rotate_back(expected, KEY))
    assert alike(gpu.rotate(torch.stack([x, x], dim=1)[:, 0], KEY), expected)
    assert alike(gpu.hadamard(x.double()), reference.hadamard(x.double()))


@pytest.mark.long
def test_there_are_as_many_passes_as_stages_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three for the interpreter too, with fewer stages each."""
    monkeypatch.setattr(rotation, "_STAGES", 10)
    monkeypatch.setattr(rotation, "_LATER", 2)
    x = tensor("normal", 1 << 13)
    with poisoned():
        assert alike(gpu.rotate(x, KEY), reference.rotate(x, KEY))
        assert alike(gpu.rotate_back(x, KEY), reference.rotate_back(x, KEY))


@pytest.mark.parametrize("n", [1, 2, 64])
def test_the_reference_is_the_orthonormal_transform(n: int) -> None:
    made = torch.ones(1, 1)
    while len(made) < n:
        made = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), made)
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(reference.hadamard(x), made @ x / n**0.5, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(reference.hadamard(reference.hadamard(x)), x, rtol=1e-5, atol=1e-6)
    assert set(signs(5, 1000, torch.device("cpu")).tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(("count", "length"), [(0, 1), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_lengths_are_filled_up_to_a_power_of_two(count: int, length: int) -> None:
    assert rotated_length(count) == length
