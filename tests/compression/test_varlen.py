"""Variable-length coding: Huffman codes lose nothing, messages are within the paper's bound and below fixed widths."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.codes import huffman
from laconic.compression.level_tables import lost
from laconic.compression.rotated import KLevel
from laconic.compression.varlen import VariableLength
from laconic.errors import ContractError, StrategyError
from laconic.runtime.meeting import Meeting
from tests.compression.table import spec_of, tensor

MEETING = Meeting(0, 1, 0, "x")
NUMBERS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), max_size=300)


def counted(numbers: Tensor, kinds: int) -> Tensor:
    return torch.bincount(numbers, minlength=kinds)


def sent(x: Tensor, step: int = 0, made: VariableLength | None = None) -> tuple[Tensor, int]:
    """What is decoded, and how many bytes it took."""
    made = made or VariableLength()
    meeting = Meeting(0, 1, step, "x")
    payload = made.encode(x, meeting)
    return made.decode(payload, x.shape, meeting), payload.nbytes


# ---------------------------------------------------------------------------------------------- the code


@pytest.mark.long
@pytest.mark.technique("suresh_varlen", check=1)
@given(numbers=NUMBERS, kinds=st.integers(41, 60))
@settings(max_examples=80, deadline=None)
def test_numbers_are_read_as_they_were_written(numbers: list[int], kinds: int) -> None:
    levels = torch.tensor(numbers, dtype=torch.int64)
    counts = counted(levels, kinds)
    written = huffman.write(levels, counts)
    assert torch.equal(huffman.read(written, counts), levels)
    widths = huffman.lengths(counts.numpy())
    assert written.nbytes == math.ceil(int((counts.numpy() * widths).sum()) / 8)


@pytest.mark.technique("suresh_varlen", check=1)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant", "zero", "single", "long"])
@pytest.mark.parametrize("levels", [0, 2, 3, 100])
def test_a_message_says_the_levels_that_were_drawn(kind: str, levels: int) -> None:
    """The decoded tensor is the levels of those draws, computed apart, to a rounding."""
    x, made = tensor(kind), VariableLength(levels=levels)
    found, _ = sent(x, made=made)
    steps = made.count(x.numel()) - 1
    span = math.sqrt(2) * x.double().norm() if x.any() else torch.ones(()).double()
    places = (found.double() - x.min()) / span * steps
    assert float((places - places.round()).abs().max()) < 1e-2
    exact = (x.double() - x.min()) / span * steps
    assert float((places.round() - exact).abs().max()) < 1 + 1e-3
    again, _ = sent(x, made=made)
    assert torch.equal(found, again)


@given(counts=st.lists(st.integers(0, 1000), min_size=2, max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_code_is_the_shortest_there_is(counts: list[int]) -> None:
    """The sum of all merges is Huffman's cost; Kraft's sum is one; it is within a bit of the entropy."""
    heap = [c for c in counts if c]
    heapq.heapify(heap)
    cost = 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    widths = huffman.lengths(np.array(counts))
    total = sum(counts)
    assert int((np.array(counts) * widths).sum()) == cost
    if sum(c > 0 for c in counts) > 1:
        assert sum(2.0 ** -int(w) for w, c in zip(widths, counts, strict=True) if c) == 1
        entropy = -sum(c * math.log2(c / total) for c in counts if c)
        assert entropy - 1e-6 <= cost < entropy + total


def test_very_uneven_counts_make_long_codes() -> None:
    """Fibonacci counts, the worst there are."""
    counts = [1, 1]
    while len(counts) < 22:
        counts.append(counts[-1] + counts[-2])
    numbers = torch.repeat_interleave(torch.arange(22), torch.tensor(counts))
    assert int(huffman.lengths(np.array(counts)).max()) == 21
    written = huffman.write(numbers, torch.tensor(counts))
    assert torch.equal(huffman.read(written, torch.tensor(counts)), numbers)


@pytest.mark.parametrize(("data", "counts"), [([0], [9, 9]), ([0, 0, 0, 0], [4, 4]), ([], [1, 1]), ([1], [5, 0])])
def test_bytes_that_are_no_such_codes_are_refused(data: list[int], counts: list[int]) -> None:
    with pytest.raises(ContractError, match=r"numbers|needed"):
        huffman.read(torch.tensor(data, dtype=torch.uint8), torch.tensor(counts))


# ---------------------------------------------------------------------------------------------- the message


def length_bound(numel: int, levels: int) -> float:
    """Return the largest number of bits of a message, by the paper's theorem on arithmetic coding, with 64 for its
    constant."""
    n, k = numel, levels
    return n * (2 + math.log2((k - 1) ** 2 / (2 * n) + 1.25)) + k * math.log2((n + k) * math.e / k) + 64


@pytest.mark.technique("suresh_varlen", check=2)
@given(n=st.integers(64, 30_000), kind=st.sampled_from(["normal", "constant", "one_hot"]), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_a_message_is_shorter_than_the_papers_bound(n: int, kind: str, seed: int) -> None:
    x = torch.eye(1, n)[0].roll(seed) if kind == "one_hot" else tensor(kind, (n,), seed)
    _, nbytes = sent(x, seed)
    k = VariableLength().count(n)
    assert k == math.isqrt(n) + 1
    assert 8 * nbytes < length_bound(n, k)


@pytest.mark.parametrize("k", [2, 8, 40, 300])
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant"])
@pytest.mark.technique("suresh_varlen", check=2)
def test_so_it_is_for_other_numbers_of_levels(k: int, kind: str) -> None:
    x = tensor(kind, (4096,))
    assert 8 * sent(x, made=VariableLength(levels=k))[1] < length_bound(4096, k)


@pytest.mark.technique("suresh_varlen", check=3)
@pytest.mark.parametrize("n", [4096, 50_000])
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "uniform"])
def test_at_the_same_error_it_takes_fewer_bits_than_a_fixed_width(n: int, kind: str) -> None:
    """The fewest bits of `suresh_klevel` with which its error is not larger, against the default. Errors are exact,
    from both neighbours of every value; what is measured is near."""
    x = torch.rand(n, generator=torch.Generator().manual_seed(0)) - 0.5 if kind == "uniform" else tensor(kind, (n,))
    low, wide = x.double().min(), math.sqrt(2) * x.double().norm()

    def error(span: Tensor, k: int) -> float:
        return float(lost(x.double(), low + torch.linspace(0, 1, k).double() * span).sum())

    own = error(wide, VariableLength().count(n))
    found, nbytes = sent(x)
    assert float((found - x).double().square().sum()) == pytest.approx(own, rel=0.15)
    width = next(w for w in range(1, 9) if error(x.double().max() - low, 2**w) <= own)
    assert nbytes < KLevel(levels=2**width).payload_bytes(spec_of(x), 1)


def test_gaussian_values_take_little_more_than_two_bits_however_many_there_are() -> None:
    """And the error does not grow with n: at most about half the squared norm."""
    for n in (1000, 10_000, 100_000):
        x = tensor("normal", (n,))
        found, nbytes = sent(x)
        assert 8 * nbytes / n < 2.5
        assert float((found - x).square().sum() / x.square().sum()) < VariableLength().variance(spec_of(x)) < 0.53


@pytest.mark.long
@given(n=st.integers(1, 2000), kind=st.sampled_from(["normal", "heavy", "sparse", "constant", "zero"]))
@settings(max_examples=25, deadline=None)
def test_no_message_is_longer_than_declared(n: int, kind: str) -> None:
    x = tensor(kind, (n,))
    for levels in (0, 2, 17):
        made = VariableLength(levels=levels)
        assert sent(x, made=made)[1] <= made.payload_bytes(spec_of(x), 1)


@pytest.mark.long
def test_it_is_right_in_the_mean() -> None:
    x, draws = tensor("heavy", (50,)), 600
    found = torch.stack([sent(x, step)[0] for step in range(draws)]).double()
    deviation = found.std(dim=0) / math.sqrt(draws)
    assert bool(((found.mean(dim=0) - x).abs() <= 4 * deviation + 1e-5).all())


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_makes_nothing_finite(poison: float) -> None:
    x = tensor("normal", (80,))
    x[9] = poison
    assert not bool(sent(x)[0].isfinite().any())


def test_one_level_is_refused() -> None:
    with pytest.raises(StrategyError, match="write levels=2"):
        VariableLength(levels=1)


def test_fewer_than_no_levels_are_refused() -> None:
    with pytest.raises(StrategyError, match="levels"):
        VariableLength(levels=-3)
