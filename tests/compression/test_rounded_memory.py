"""Error memories of 16 and 8 bits: right in the mean, as short as they say, and their sum conserved."""

from __future__ import annotations

import pytest
import torch

from laconic.compression.optional import added_memories, memory_bytes
from laconic.compression.rounded_memory import FORMATS
from laconic.kernels.draws import key_of
from tests.compression.table import compressor, meet, spec_of

NUMELS = [1, 255, 256, 257, 1000, 2560]


@pytest.mark.parametrize("precision", FORMATS)
def test_rounding_is_right_in_the_mean_and_to_a_neighbour(precision: str) -> None:
    how, x = FORMATS[precision], torch.randn(300, generator=torch.Generator().manual_seed(1))
    step = x.abs() / 128 if precision == "bf16" else x.abs().max() / 127
    drawn = torch.stack([how.read(how.write([x], [key_of(str(i))]), [300]) for i in range(400)])
    assert ((drawn - x).abs() <= 1.001 * step).all()
    assert ((drawn.double().mean(0) - x).abs() <= 5 * step / 2 / 20 + 1e-7).all()
    assert (drawn.std(0) > 0).float().mean() > 0.9


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("numel", NUMELS)
def test_lengths(precision: str, numel: int) -> None:
    how = FORMATS[precision]
    assert how.numel(how.length(numel)) == numel
    written = how.write([torch.ones(numel), torch.ones(3)], [1, 2])
    assert len(written) == how.length(numel) + how.length(3) and how.read(written, [numel, 3]).eq(1).all()


def test_a_value_that_bfloat16_does_not_reach_stays_finite() -> None:
    how, most = FORMATS["bf16"], torch.tensor([torch.finfo(torch.float32).max])
    assert all(how.read(how.write([x], [key]), [1]).isfinite().all() for x in (most, -most) for key in range(20))


def test_the_memory_is_as_short_as_it_says() -> None:
    spec = spec_of(torch.zeros(64, 64))
    sizes = [memory_bytes(compressor(f"scaled_sign+ef(precision={p})"), [spec]) for p in ("full", "bf16", "int8")]
    assert sizes == [4 * 4096, 2 * 4096, 4096 + 4 * 16]


@pytest.mark.parametrize("precision", FORMATS)
def test_the_sum_is_conserved_when_workers_leave(precision: str) -> None:
    made, how = compressor(f"topk(0.1)+ef(precision={precision})"), FORMATS[precision]
    states = [outcome.state for outcome in meet(made, [torch.randn(20, 30) for _ in range(3)])]
    values = [how.read(state["error"].reshape(-1), [600]) for state in states]
    together = added_memories(made, "error", [state["error"] for state in states])
    assert together.shape == states[0]["error"].shape and together.dtype == states[0]["error"].dtype
    total = torch.stack(values).sum(dim=0)
    left = how.read(together.reshape(-1), [600]) - total
    assert left.abs().max() <= total.abs().max() / 100


@pytest.mark.parametrize("precision", FORMATS)
def test_what_was_sent_and_the_memory_is_the_sum_of_inputs_but_for_rounding(precision: str) -> None:
    made, how = compressor(f"topk(0.1)+ef(precision={precision})"), FORMATS[precision]
    draw, state, total, sent = torch.Generator().manual_seed(2), None, torch.zeros(600), torch.zeros(600)
    for step in range(50):
        x = torch.randn(600, generator=draw)
        (outcome,) = meet(made, [x], None if state is None else [state], step)
        state, total, sent = outcome.state, total + x, sent + outcome.result
    assert state is not None
    left = total - sent - how.read(state["error"].reshape(-1), [600])
    assert 0 < left.norm() < 0.05 * total.norm()
