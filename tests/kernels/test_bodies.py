"""Compiled bodies against the reference, bit by bit, and the reference against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.kernels import reference
from laconic.kernels.draws import integers, uniform
from laconic.kernels.sums import rows_summed

pytest.importorskip("numba", reason="without Numba there is only the reference")

LENGTHS = [4096, 5000, 12_345, 100_003]
KINDS = ["normal", "heavy", "sparse", "constant", "zero", "infinite", "nan"]


def tensor(kind: str, n: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=draw)
    if kind == "heavy":
        return x**5
    if kind == "sparse":
        return x * (torch.rand(n, generator=draw) < 0.01)
    if kind in ("constant", "zero"):
        return torch.full((n,), 0.3 if kind == "constant" else 0.0)
    if kind in ("infinite", "nan"):
        x[n // 3] = float("-inf" if kind == "infinite" else "nan")
    return x


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_bodies_give_the_references_bits(kind: str, n: int) -> None:
    x, error = tensor(kind, n), 0.1 * tensor("normal", n, 1)
    assert same(kernels.pack_signs(x), reference.pack_signs(x))
    for bucket, norm in ((512, "max"), (n, "max"), (2048, "l2"), (n, "l1"), (500, "l2")):
        assert same(kernels.bucket_scales(x, bucket, norm), reference.bucket_scales(x, bucket, norm)), (bucket, norm)
    kept, expected = error.clone(), error.clone()
    (bits, scale), (bits_, scale_) = kernels.feed_signs(x, kept), reference.feed_signs(x, expected)
    assert same(bits, bits_) and same(scale, scale_) and same(kept, expected)
    totals = [torch.ones(n), torch.ones(n)]
    kernels.add_signs(totals[0], bits, scale)
    reference.add_signs(totals[1], bits, scale)
    assert same(*totals)
    places, values = kernels.select(x, 1.5)
    assert same(places, reference.select(x, 1.5)[0]) and same(values, reference.select(x, 1.5)[1])
    if kind not in ("infinite", "nan"):  # refused before anything is quantised
        for steps, bucket in ((1, 512), (7, 512), (127, n)):
            given = (x, reference.bucket_scales(x, bucket, "max"), bucket, steps, 99)
            assert same(kernels.quantize(*given), reference.quantize(*given))
            if steps <= 7:
                assert same(kernels.quantize_in_nibbles(*given), reference.quantize_in_nibbles(*given))


@pytest.mark.parametrize("steps", [1, 7, 127])
def test_levels_round_the_quotient_of_steps_and_scale_once(steps: int) -> None:
    """Fractions are as near to the draws as float32 allows, so that another last bit of the quotient changes codes."""
    n, bucket, key = 1 << 16, 64, 99
    scales = 1 + torch.arange(n // bucket) / 1000
    fractions = torch.arange(n) % steps + uniform(key, 0, n)
    x = fractions * (scales / steps).repeat_interleave(bucket)
    a = x.numpy() * np.repeat(np.float32(steps) / scales.numpy(), bucket)
    expected = np.floor(a) + (uniform(key, 0, n).numpy() < a - np.floor(a))
    codes = torch.from_numpy(np.minimum(expected, steps) + steps).to(torch.uint8)
    assert same(reference.quantize(x, scales, bucket, steps, key), codes)
    assert same(kernels.quantize(x, scales, bucket, steps, key), codes)


@pytest.mark.long
def test_bodies_are_the_same_in_several_threads() -> None:
    x = tensor("heavy", 3 << 20)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        error = torch.zeros_like(x)
        places, values = kernels.select(x, 2.0)
        scales = kernels.bucket_scales(x, 512, "max")
        found.append([*kernels.feed_signs(x, error), error, places, values, kernels.quantize(x, scales, 512, 7, 5)])
    torch.set_num_threads(before)
    assert all(same(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.integers(1, 300))
def test_a_draw_depends_on_its_place_alone(key: int, start: int, count: int) -> None:
    whole = integers(key, start, count)
    assert torch.equal(whole[count // 2 :], integers(key, start + count // 2, count - count // 2))
    assert int(whole.min()) >= 0 and int(whole.max()) < 1 << 24


def test_draws_are_uniform_and_keys_are_unlike() -> None:
    n = 1 << 20
    draws = torch.stack([uniform(key, 0, n) for key in (0, 1, 1 << 32, 0x123456789ABCDEF)]).double()
    assert (draws.mean(dim=1) - 0.5).abs().max() < 4 * (1 / 12 / n) ** 0.5
    counts = torch.stack([torch.histc(row, 256, 0, 1) for row in draws])
    assert ((counts - n / 256) ** 2 / (n / 256)).sum(dim=1).max() < 256 + 5 * (2 * 256) ** 0.5
    correlation = torch.corrcoef(draws) - torch.eye(len(draws))
    assert correlation.abs().max() < 5 / n**0.5
    lagged = torch.corrcoef(torch.stack([draws[0, :-1], draws[0, 1:]]))[0, 1]
    assert abs(lagged) < 5 / n**0.5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000))
def test_sums_are_sums(n: int) -> None:
    x = torch.rand(3, n, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(rows_summed(x), x.double().sum(dim=1).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("n", [1, 7, 4096, 4099, 100_003])
@pytest.mark.parametrize("bits", [1, 3, 5, 7, 9, 12, 17, 20, 31, 32])
def test_numbers_of_any_width_come_back_from_both_bodies(n: int, bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (n,), generator=torch.Generator().manual_seed(n))
    codes[-1] = (1 << bits) - 1
    packed = kernels.pack_numbers(codes, bits)
    assert same(packed, reference.pack_numbers(codes, bits)) and packed.numel() == -(-n * bits // 8)
    assert same(kernels.unpack_numbers(packed, bits, n), codes)
    assert same(reference.unpack_numbers(packed, bits, n), codes)
    bit = sum(int(codes[i]) << (bits * i) for i in range(min(n, 50)))
    whole = int.from_bytes(packed[: min(n, 50) * bits // 8].numpy().tobytes(), "little")
    assert whole == bit & ((1 << (min(n, 50) * bits // 8 * 8)) - 1), "number i takes bits b·i to b·(i + 1)"


@pytest.mark.parametrize("n", [4096, 4099, 12_345])
@pytest.mark.parametrize(("steps", "bucket"), [(1, 512), (7, 512), (7, 100), (127, 2048)])
def test_levels_are_added_with_the_references_bits(n: int, steps: int, bucket: int) -> None:
    x = tensor("heavy", n)
    scales = reference.bucket_scales(x, bucket, "max")
    scales[1] = float("inf")
    codes = reference.quantize(x, scales, bucket, steps, 5)
    sums = [torch.ones(n), torch.ones(n)]
    kernels.add_levels(sums[0], codes, scales, bucket, steps)
    reference.add_levels(sums[1], codes, scales, bucket, steps)
    assert same(*sums)
    if steps <= 7:
        pairs = reference.in_buckets(codes, 2)
        packed = pairs[:, 0] | (pairs[:, 1] << 4)
        sums = [torch.ones(n), torch.ones(n)]
        kernels.add_levels_of_nibbles(sums[0], packed, scales, bucket, steps)
        reference.add_levels(sums[1], codes, scales, bucket, steps)
        assert same(*sums)
