"""Aids for lossy exchange: error accumulation, momentum correction, local clipping, warm-up."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.sync import digits


@pytest.mark.long
@pytest.mark.technique("auxiliary_tricks", check=1)
@given(
    st.sampled_from(["topk({})+ef", "flat+dgc({})"]),
    st.integers(2, 200),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.01, 0.1, 0.5]),
    st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_what_was_sent_and_what_is_kept_is_what_came_to_the_bit(
    chain: str, numel: int, workers: int, ratio: float, seed: int
) -> None:
    """Gradients of whole numbers, whose sums are exact; without momentum to be added to them."""
    made, draw = compressor(chain.format(ratio)), torch.Generator().manual_seed(seed)
    states = [made.init(spec_of(torch.zeros(numel))) for _ in range(workers)]
    sent, came = torch.zeros(2, numel)
    for step in range(12):
        inputs = [torch.randint(-50, 51, (numel,), generator=draw).float() for _ in range(workers)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        sent += outcomes[0].result
        came += torch.stack(inputs).sum(0) / workers
    kept = [state["error" if "error" in state else "sum"] for state in states]
    assert torch.equal(sent + torch.stack(kept).sum(0) / workers, came)


@pytest.mark.long
@pytest.mark.technique("auxiliary_tricks", check=2)
@pytest.mark.parametrize(
    "sentence",
    [
        "warm_up(5, 1.0) / flat+dgc(1.0, clip=1e6, masking=false, warmup=5) / sequential",
        "topk(1.0)+ef",
        "dgc(1.0, masking=false)",
        "dgc(1.0, clip=1e6, masking=false)",
        "warm_up(5, 1.0) / topk(1.0)+ramp(4, 1.0)",
    ],
)
def test_at_density_one_all_and_each_are_momentum_sgd(sentence: str) -> None:
    """Without masking, which at density one forgets all momentum (`dgc`'s own tests)."""
    plain = digits.trained("bsp", 12, 16, digits.sgd(0.1, 0.9))
    end = digits.trained(sentence, 12, 16, digits.sgd(0.1, 0.9))
    torch.testing.assert_close(end.parameters, plain.parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.technique("auxiliary_tricks", check=3)
@given(
    st.floats(1e-3, 1e3),
    st.integers(1, 9),
    st.sampled_from(["normal", "heavy", "sparse", "zero"]),
    st.floats(1e-3, 1e4),
)
@settings(max_examples=60, deadline=None)
def test_no_workers_norm_is_above_its_part(theta: float, workers: int, kind: str, scale: float) -> None:
    """What is within stays as it is, what is beyond keeps its direction."""
    inputs = [scale * tensor(kind, seed=rank) for rank in range(workers)]
    limit = theta / math.sqrt(workers)
    for x, outcome in zip(inputs, meet(compressor(f"dgc(1.0, clip={theta!r})"), inputs), strict=True):
        assert outcome.sent is not None
        assert float(outcome.sent.double().norm()) <= limit * (1 + 1e-5)
        norm = float(x.norm())
        torch.testing.assert_close(outcome.sent, x if norm <= limit else x * (limit / norm))


@pytest.mark.technique("auxiliary_tricks", check=3)
@pytest.mark.parametrize("workers", [1, 4])
def test_the_whole_gradient_is_cut_before_it_is_remembered(workers: int) -> None:
    """Of the named sentence: after one step, what was sent and what is kept have the norm of the cut gradient."""
    for outcome in meet(compressor("auxiliary_tricks"), [100 * tensor("normal", (4000,))] * workers):
        assert outcome.sent is not None
        whole = outcome.sent + outcome.state["sum"]
        assert float(whole.norm()) == pytest.approx(1 / math.sqrt(workers), rel=1e-5)


def test_the_rate_grows_to_the_scripts_own() -> None:
    """One weight whose gradient is one moves by the rate of each step."""

    def body() -> list[float]:
        model: Any = torch.nn.Linear(1, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), "warm_up(4, 0.2)")
        at = []
        for _ in range(7):
            at.append(model.weight.item())
            model(torch.ones(1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [(a - b) / 0.5 for a, b in pairwise(at)]

    assert laconic.simulate(body, 2).results[0] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0], rel=1e-4)


@pytest.mark.long
def test_all_four_train_at_a_hundredth() -> None:
    text = "warm_up(40) / flat+dgc(0.01, clip=4.0, warmup=40) / allreduce / sequential"
    assert digits.trained(text, 150, 16, digits.sgd(0.1, 0.9)).accuracy >= 85
