"""Four-bit floats represent exactly the values of their 4 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import laconic
from laconic.compression.float4 import decode, encode

VALUES = [0.0, *(2.0**k for k in range(-6, 1))]


def round_trip(x: torch.Tensor) -> torch.Tensor:
    return decode(encode(x), x.shape)


@pytest.mark.parametrize("scale", [1.0, 3e-5, 7e8])
def test_its_fifteen_values_arrive_as_they_are(scale: float) -> None:
    x = torch.tensor([*VALUES, *(-v for v in VALUES[1:])]) * scale
    assert torch.equal(round_trip(x), x)
    assert len(encode(x)) == 8 + 4  # 15 values in 8 bytes, and the scale


@pytest.mark.parametrize("shape", [(1,), (3,), (4, 5), (2, 3, 1)])
@pytest.mark.parametrize("value", [0.0, -0.37, 1e-30])
def test_constant_tensors_arrive_as_they_are(shape: tuple[int, ...], value: float) -> None:
    x = torch.full(shape, value)
    assert torch.equal(round_trip(x), x)


@pytest.mark.long
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_each_value_becomes_the_nearest_it_can(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    levels = torch.tensor([*VALUES, *(-v for v in VALUES)], dtype=torch.float64) * x.abs().max()
    nearest = (x.unsqueeze(1) - levels).abs().min(dim=1).values
    torch.testing.assert_close((round_trip(x).double() - x).abs(), nearest, rtol=1e-5, atol=1e-6 * float(x.abs().max()))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(wrong: float) -> None:
    assert not round_trip(torch.tensor([1.0, wrong, 0.0])).isfinite().any()


def test_the_mean_is_made_in_float32_whatever_the_model_holds() -> None:
    def mean_gradient() -> torch.Tensor:
        model = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
        torch.nn.init.zeros_(model.weight)
        model, _ = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), "bsp / e3m0")
        model(torch.full((1, 4), 2.0 ** -laconic.rank(), dtype=torch.bfloat16)).sum().backward()
        return model.weight.grad

    out = laconic.simulate(mean_gradient, workers=3).results
    assert all(torch.equal(grad, torch.full((1, 4), 7 / 12).bfloat16()) for grad in out)


def test_the_bytes_of_an_example() -> None:
    """Two values in a byte, the first in the lower half, a sign in the eight; the scale comes last. Zeros are zeros."""
    scale = list(torch.tensor([4.0]).view(torch.uint8))
    assert encode(torch.tensor([4.0, -2.0, 0.0, 1.0, -0.0625])).tolist() == [7 + 16 * 14, 0 + 16 * 5, 9, *scale]
    assert encode(torch.zeros(5)).tolist() == [0] * 7
