"""Sufficient factors: what a linear layer's gradient is made of, and the rule by which it goes one way or the other."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from laconic.compression.sufficient_factors import SufficientFactors, factor_values, served_values
from laconic.runtime.linear_factors import LinearFactors
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import answer_requests, compressor

Pair = tuple[Tensor, Tensor]


def met(made: Any, inputs: list[Tensor], pairs: list[Pair | None], states: Any = None) -> tuple[list[Any], list[int]]:
    """One exchange of workers with these factors: outcomes, and the bytes that each handed over."""

    def known(pair: Pair | None) -> Any:
        return lambda: pair

    size = len(inputs)
    states = states or [made.init(TensorSpec("x", tuple(x.shape), x.dtype)) for x in inputs]
    exchanges = [
        made.exchange(x.clone(), state, Meeting(rank, size, 0, "x", factors=known(pair)))
        for rank, (x, state, pair) in enumerate(zip(inputs, states, pairs, strict=True))
    ]
    requests = [next(exchange) for exchange in exchanges]
    sent = [request.tensor.nbytes for request in requests]
    outcomes = []
    for exchange, answer in zip(exchanges, answer_requests(requests), strict=True):
        with pytest.raises(StopIteration) as end:
            exchange.send(answer)
        outcomes.append(end.value.value)
    return outcomes, sent


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


@pytest.mark.long
@pytest.mark.technique("poseidon", check=1)
@given(
    st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans(),
    st.integers(1, 3), st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_gradient_is_the_product_of_its_factors(
    m: int, n: int, leading: list[int], bias: bool, passes: int, seed: int
) -> None:
    """Whatever stands before the features, and over passes that are added up; taken once."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(n, m, bias=bias), nn.Tanh(), nn.Linear(m, 3))
    factors = LinearFactors(model)
    factors.record(["0.weight", "2.weight"])
    for _ in range(passes):
        model(torch.randn(*leading, n)).square().mean().backward()
    for name in ("0.weight", "2.weight"):
        pair = factors.take(name)
        gradient = model.get_parameter(name).grad
        assert pair is not None and gradient is not None
        rows = passes * int(torch.Size(leading).numel())
        assert len(pair[0]) == len(pair[1]) == rows
        assert near(pair[1].T @ pair[0], gradient) <= 1e-5
        again = factors.take(name)
        assert again is not None and len(again[0]) == 0


@pytest.mark.technique("poseidon", check=1)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_is_rebuilt_is_the_mean_of_dense_gradients(workers: int) -> None:
    """Batches may differ in size, and one worker may have none; all end with the same bits."""
    made, draw = SufficientFactors(batch=4), torch.Generator().manual_seed(workers)
    pairs: list[Pair | None] = []
    gradients = []
    for count in (4, 7, 0, 1)[:workers]:
        u, v = torch.randn(count, 60, generator=draw), torch.randn(count, 50, generator=draw)
        pairs.append((u, v))
        gradients.append(v.T @ u)
    outcomes, sent = met(made, gradients, pairs)
    assert sent == [4 * count * 110 for count in (4, 7, 0, 1)[:workers]]
    for outcome, gradient in zip(outcomes, gradients, strict=True):
        assert near(outcome.result, torch.stack(gradients).mean(0)) <= 1e-5
        assert torch.equal(outcome.result, outcomes[0].result)
        torch.testing.assert_close(outcome.sent, gradient)


@pytest.mark.technique("poseidon", check=2)
def test_the_rule_takes_the_smaller_on_a_grid() -> None:
    """And the price is the bytes of what it takes: factors are gathered, a dense gradient is reduced."""
    taken = set()
    grid = itertools.product((8, 64, 1000), (8, 300, 4096), (1, 16, 256), (2, 4, 16), (1, 3, 16))
    for m, n, k, workers, servers in grid:
        made = SufficientFactors(batch=k, servers=servers)
        factors = 2 * k * (workers - 1) * (m + n)
        served = 2 * m * n * (workers + servers - 2) / servers
        assert factor_values(m, n, k, workers) == factors and served_values(m, n, workers, servers) == served
        pays = made.pays((m, n), workers)
        assert (factors if pays else served) == min(factors, served)
        ((meets, nbytes),) = made.prices(TensorSpec("x", (m, n), torch.float32), workers)
        assert (meets, nbytes) == (("gather", 4 * k * (m + n)) if pays else ("reduce", 4 * m * n))
        taken.add(pays)
    assert taken == {True, False}


def test_equal_bytes_go_as_factors() -> None:
    assert served_values(8, 8, 2, 2) == factor_values(8, 8, 4, 2)
    assert SufficientFactors(batch=4).pays((8, 8), 2) and not SufficientFactors(batch=5).pays((8, 8), 2)


def test_factors_that_are_not_the_gradients_are_not_believed() -> None:
    """One worker's pairs are wrong: the mean is right all the same; where all are, dense gradients follow."""
    made, draw = SufficientFactors(batch=2), torch.Generator().manual_seed(0)
    u, v = torch.randn(2, 30, generator=draw), torch.randn(2, 20, generator=draw)
    other = torch.randn(20, 30, generator=draw)
    outcomes, sent = met(made, [v.T @ u, other], [(u, v), (u, v)])
    assert sent == [4 * 2 * 50, 4 * 20 * 50]
    assert all(near(outcome.result, (v.T @ u + other) / 2) <= 1e-5 for outcome in outcomes)
    outcomes, sent = met(made, [other, other.clone()], [(u, v), (u, v)])
    assert sent == [4 * 20 * 50] * 2 and all(bool(outcome.state["dense"]) for outcome in outcomes)
    _, sent = met(made, [other, other.clone()], [(u, v), (u, v)], [outcome.state for outcome in outcomes])
    assert sent == [4 * 20 * 30] * 2


def test_where_nothing_is_known_the_gradient_goes() -> None:
    x = torch.ones(200, 100)
    outcomes, sent = met(SufficientFactors(batch=1), [x, 3 * x], [None, None])
    assert sent == [x.nbytes] * 2 and torch.equal(outcomes[0].result, 2 * x)


class Twice(nn.Module):
    """A weight that two layers share, one that is not a linear layer's, and one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out, self.free = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False), nn.Linear(5, 5)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.free(self.words(x)))
        return out


def test_shared_weights_are_left_alone() -> None:
    model = Twice()
    factors = LinearFactors(model)
    factors.record([name for name, _ in model.named_parameters()])
    model(torch.arange(6)).sum().backward()
    assert factors.take("words.weight") is None and factors.take("free.weight") is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_again_are_noted_once(reentrant: bool) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    factors = LinearFactors(model)
    factors.record(["0.weight"])
    checkpoint(model, torch.randn(5, 4, requires_grad=True), use_reentrant=reentrant).sum().backward()
    pair = factors.take("0.weight")
    assert pair is not None and len(pair[0]) == 5
    assert near(pair[1].T @ pair[0], model[0].weight.grad) <= 1e-5


def test_nothing_is_kept_for_copies_or_after_the_end() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6))
    factors = LinearFactors(model)
    factors.record(["0.weight"])
    copy.deepcopy(model)(torch.ones(3, 4)).sum().backward()
    pair = factors.take("0.weight")
    assert pair is not None and len(pair[0]) == 0
    with torch.no_grad():
        model(torch.ones(3, 4))
    factors.release()
    model(torch.ones(3, 4)).sum().backward()
    assert factors.take("0.weight") is None and not model[0]._forward_hooks


def test_only_matrices_of_layers_are_taken() -> None:
    made = compressor("sufficient_factors")
    assert made.accepts(TensorSpec("fc.weight", (8, 9), torch.float32))
    for spec in (
        TensorSpec("conv.weight", (8, 9), torch.float32, "conv"),
        TensorSpec("words.weight", (8, 9), torch.float32, "embedding"),
        TensorSpec("fc.bias", (8,), torch.float32, "bias"),
        TensorSpec("conv.weight", (8, 9, 3, 3), torch.float32),
    ):
        assert not made.accepts(spec)
