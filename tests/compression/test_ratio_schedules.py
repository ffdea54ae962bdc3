"""Shares that change with the steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.ratio_schedules import SHAPES, Ramp
from laconic.errors import StrategyError
from tests.compression.table import compressor, meet, spec_of, tensor


@pytest.mark.long
@given(st.sampled_from(SHAPES), st.integers(1, 500), st.floats(1e-4, 1), st.floats(1e-4, 1))
@settings(max_examples=80, deadline=None)
def test_a_ramp_goes_one_way_from_its_start_to_the_end(shape: str, steps: int, start: float, end: float) -> None:
    shares = [Ramp(steps, start, shape).share(step, end) for step in range(steps + 3)]
    assert shares[0] == pytest.approx(start) and shares[-1] == shares[steps] == pytest.approx(end)
    rising = [b >= a * (1 - 1e-12) for a, b in pairwise(shares)]
    falling = [b <= a * (1 + 1e-12) for a, b in pairwise(shares)]
    assert all(rising) or all(falling)
    assert shape != "stairs" or len({round(share, 12) for share in shares}) <= 5


def test_the_dgc_papers_stairs() -> None:
    """A quarter, a sixteenth, … to a thousandth's neighbour: 75, 93.75, 98.44, 99.6 % sparsity and the end."""
    ramp = Ramp(4, 0.25, "stairs")
    assert [ramp.share(step, 0.25**5) for step in range(5)] == pytest.approx([0.25**k for k in range(1, 6)])


@pytest.mark.parametrize(
    "text", ["topk(0.01)+ramp(10)", "topk(0.01)+qsgd+ramp(10)", "mstopk(0.01)+ramp(10, 0.5, linear)"]
)
def test_what_is_sent_in_a_step_is_its_share(text: str) -> None:
    """As many bytes as the same compressor with that share; at the end the very same message."""
    x = tensor("normal", (50, 40))
    made = compressor(text)
    plain = compressor(text.rpartition("+")[0])
    sizes = []
    for step in range(12):
        messages: list[list[tuple[str, torch.Tensor]]] = []
        (outcome,) = meet(made, [x], step=step, payloads=messages)
        sizes.append(sum(part.nbytes for _, part in messages[0]))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 10 * sizes[-1]
    assert sizes[-1] == made.payload_bytes(spec_of(x), 1)
    (end,) = meet(plain, [x], step=11)
    assert torch.equal(outcome.result, end.result)


def test_a_ramp_inside_a_memory_keeps_everything() -> None:
    made, draw = compressor("topk(0.02)+ramp(8)+ef"), torch.Generator().manual_seed(0)
    state, sent, came = made.init(spec_of(tensor("zero"))), torch.zeros(24, 20), torch.zeros(24, 20)
    for step in range(20):
        x = torch.randn(24, 20, generator=draw)
        (outcome,) = meet(made, [x], [state], step)
        state, sent, came = outcome.state, sent + outcome.result, came + x
    torch.testing.assert_close(sent + state["error"], came, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("text", ["int8", "hard_threshold", "hard_threshold+fp16", "chunk_topk", "chunk_topk+two_bit"])
def test_what_has_no_share_has_no_ramp(text: str) -> None:
    with pytest.raises(StrategyError, match="no share"):
        compressor(f"{text}+ramp(10)")


def test_the_shapes_differ_half_way() -> None:
    """Linear: the mean of the ends; exponential: their geometric mean; stairs: the height of the third of five."""
    half = {shape: Ramp(8, 0.4, shape).share(4, 0.1) for shape in SHAPES}
    assert half == pytest.approx({"exponential": 0.2, "linear": 0.25, "stairs": 0.2})
    assert Ramp(8, 0.4, "stairs").share(5, 0.1) == pytest.approx(0.2) != Ramp(8, 0.4).share(5, 0.1)
