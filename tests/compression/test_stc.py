"""Sparse ternary compression: messages, memory and bits."""

from __future__ import annotations

import math

import pytest
import torch

from laconic.compression.codes import golomb
from tests.compression.table import compressor, meet, spec_of
from tests.data import fixture


@pytest.mark.evidence("stc", recording="stc.npz")
@pytest.mark.technique("stc", check=2)
@pytest.mark.parametrize("case", range(4))
def test_messages_and_memory_are_those_of_the_authors_program(case: int) -> None:
    """And what is sent and kept is what was there and came, exactly but for rounding."""
    data = {name: torch.as_tensor(value) for name, value in fixture("stc.npz").items()}
    made = compressor(f"stc({float(data[f'p_{case}'])})+ef")
    states = [made.init(spec_of(data[f"update_{case}"][0]))]
    for number, update in enumerate(data[f"update_{case}"]):
        before = states[0]["error"].clone()
        (outcome,) = meet(made, [update], states, number)
        states = [outcome.state]
        torch.testing.assert_close(outcome.result, data[f"compressed_{case}"][number], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(states[0]["error"], data[f"residual_{case}"][number], rtol=1e-5, atol=1e-6)
        assert int((outcome.result != 0).sum()) == int(data[f"k_{case}"])
        torch.testing.assert_close(outcome.result + states[0]["error"], before + update, rtol=1e-6, atol=1e-6)


@pytest.mark.technique("stc", check=1)
@pytest.mark.parametrize("ratio", [1 / 400, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("numel", [40_000, 99_991])
def test_k_values_of_one_magnitude_in_the_bits_of_the_formula(ratio: float, numel: int) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    payloads: list[list[tuple[str, torch.Tensor]]] = []
    made = compressor(f"stc({ratio})")
    (outcome,) = meet(made, [x], payloads=payloads)
    k = math.ceil(ratio * numel - 1e-9)
    sent = outcome.result[outcome.result != 0]
    assert len(sent) == k and len(sent.abs().unique()) == 1
    largest = x.abs().topk(k).indices
    assert torch.equal(sent.sign(), x.sign()[outcome.result != 0])
    assert set(largest.tolist()) == set(outcome.result.nonzero().flatten().tolist())
    torch.testing.assert_close(sent.abs().max(), x.abs()[largest].mean())
    golden = (math.sqrt(5) - 1) / 2
    b = max(0, 1 + math.floor(math.log2(math.log(golden) / math.log(1 - ratio))))
    expected = k * (b + 1 / (1 - (1 - ratio) ** (2**b)) + 1)
    assert 8 * (payloads[0][0][1].nbytes - 4) == pytest.approx(expected, rel=0.02)


@pytest.mark.technique("stc", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_gaps_are_written_without_loss(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for numel, share in ((1, 1.0), (7, 0.5), (1000, 0.01), (5000, 0.9)):
        places = (torch.rand(numel, generator=draw) < share).nonzero().flatten()
        written = golomb.write(places, numel)
        found, length = golomb.read(written, len(places), numel)
        assert torch.equal(found, places) and length == len(written)
