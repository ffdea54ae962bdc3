"""Block floats: their bytes, their tables, what they return exactly, and when they are right in the mean."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.blocks import Blocks, formats
from laconic.kernels.reference.blocks import power_values
from laconic.kernels.reference.short_floats import decoded
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import meet, tensor

FORMATS = ["mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"]
MEET = Meeting(0, 1, 0, "x")
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def through(made: Blocks, x: torch.Tensor, step: int = 0) -> torch.Tensor:
    meeting = Meeting(0, 1, step, "x")
    return made.decode(made.encode(x, meeting), x.shape, meeting)


@pytest.mark.technique("mx_block_codecs", check=1)
@pytest.mark.parametrize("n", [32, 96, 4096, 31, 33, 5])
def test_payloads(n: int) -> None:
    spec = TensorSpec("x", (n,), torch.float32)
    scales = [math.ceil(n / 32), math.ceil(n / 32), math.ceil(n / 32), math.ceil(n / 16) + 4]
    for form, values, more in zip(FORMATS, [n, n, math.ceil(n / 2), math.ceil(n / 2)], scales, strict=True):
        made = Blocks(form)
        assert made.payload_bytes(spec, 2) == len(made.encode(tensor("normal", (n,)), MEET)) == values + more


@pytest.mark.technique("mx_block_codecs", check=1)
def test_all_codes_decode_to_the_tabulated_values() -> None:
    for form in ("mxfp4", "nvfp4"):
        assert decoded(torch.arange(16), formats()[form]).tolist() == E2M1
    codes = torch.arange(256, dtype=torch.uint8)
    for form, kind in (("mxfp8", torch.float8_e4m3fn), ("mxfp8_e5m2", torch.float8_e5m2)):
        ours = decoded(codes.long(), formats()[form])
        torch.testing.assert_close(ours, codes.view(kind).float(), rtol=0, atol=0, equal_nan=True)
    assert formats()["mxfp8"].most == 448 and formats()["mxfp8_e5m2"].most == 57344


@pytest.mark.technique("mx_block_codecs", check=2)
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FORMATS[:3]), st.integers(-60, 60), st.integers(0, 1000), st.sampled_from(["ceil", "floor"]))
def test_representable_blocks_return_exactly(form: str, power: int, seed: int, scale: str) -> None:
    """Values of the format, the largest of which has the format's largest exponent, times a power of two."""
    levels = torch.tensor(formats()[form].levels)
    draw = torch.Generator().manual_seed(seed)
    x = levels[torch.randint(len(levels), (64,), generator=draw)] * torch.randn(64, generator=draw).sign()
    x[[0, 40]] = levels[-1]
    x *= 2.0**power
    assert torch.equal(through(Blocks(form, scale=scale), x), x)
    assert torch.equal(through(Blocks(form, "stochastic", scale), x), x)


@pytest.mark.technique("mx_block_codecs", check=2)
@pytest.mark.parametrize("power", [-40, 0, 30])
def test_nvfp4_returns_representable_blocks(power: int) -> None:
    """The tensor's largest is 448·6 in its own unit, another block's scale is an E4M3 value."""
    x = torch.cat([448 * torch.tensor(E2M1), 3.25 * torch.tensor(E2M1)]) * 2.0**power
    torch.testing.assert_close(through(Blocks("nvfp4"), x), x, rtol=2e-7, atol=0)


@pytest.mark.technique("mx_block_codecs", check=2)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["ceil", "floor"]), st.floats(1e-20, 1e20))
def test_relative_error_of_e4m3(seed: int, scale: str, size: float) -> None:
    x = tensor("heavy", (128,), seed) * size
    made = Blocks("mxfp8", scale=scale)
    found = through(made, x)
    unit = power_values(made.encode(x, MEET)[128:132]).repeat_interleave(32)
    normal = ((x / unit).abs() >= 2.0**-6) & ((x / unit).abs() <= 448)
    assert normal.any()
    assert float(((found - x).abs() / x.abs())[normal].max()) <= 2.0**-4
    exact = (x / unit).clamp(-448, 448).to(torch.float8_e4m3fn).float() * unit
    assert torch.equal(found, exact), "the nearest, and of two the even one, as hardware rounds"


@pytest.mark.technique("mx_block_codecs", check=3)
@pytest.mark.parametrize("form", ["mxfp4", "mxfp8", "nvfp4"])
def test_ceil_with_stochastic_rounding_is_right_in_the_mean(form: str) -> None:
    x = tensor("normal", (64,))
    x[0] = 7.0
    rows = x.repeat(10_000, 1)  # 64 is whole blocks, so that every row draws for itself
    draws = through(Blocks(form, "stochastic"), rows).double()
    error = draws.std(0) / 100
    assert bool(((draws.mean(0) - x).abs() <= 4 * error + 1e-6 * x.abs()).all())


@pytest.mark.technique("mx_block_codecs", check=3)
def test_floor_cuts_a_largest_entry_of_seven() -> None:
    x = tensor("normal", (32,))
    x[0] = 7.0
    draws = through(Blocks("mxfp4", "stochastic", "floor"), x.repeat(10_000, 1))
    assert bool((draws[:, 0] == 6.0).all())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("scale", ["ceil", "floor"])
def test_zeros_tiny_and_huge_blocks(form: str, scale: str) -> None:
    made = Blocks(form, scale=scale)
    assert not through(made, torch.zeros(64)).any()
    x = torch.cat([torch.zeros(32), torch.ones(32)])
    assert torch.equal(through(made, x), x) or form == "nvfp4"
    assert made.encode(x, MEET)[-2 if form != "nvfp4" else -8] == 0, "a zero block's scale is zero"
    huge = torch.full((32,), torch.finfo(torch.float32).max)
    assert float((through(made, huge) / huge).min()) > 0.7
    tiny = torch.full((32,), 1e-42)
    assert through(made, tiny).isfinite().all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_a_block_that_is_not_finite_is_not(form: str, poison: float) -> None:
    x = tensor("normal", (64,))
    x[3] = poison
    found = through(Blocks(form), x)
    assert not found[:16].isfinite().any()
    assert form == "nvfp4" or found[32:].isfinite().all()


def test_two_hops_take_whole_blocks() -> None:
    from tests.compression.table import compressor

    outcomes = meet(compressor("mx(mxfp4)+two_hop"), [tensor("normal", seed=r) for r in range(3)])
    assert torch.equal(outcomes[0].result, outcomes[2].result)
