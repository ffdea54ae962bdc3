"""Rounding to a table of levels: the rounding itself, and the quantisers that are nothing but a table."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic import kernels
from laconic.compression.codec import Codec
from laconic.compression.dithering import NUQSGD, QNN, Binary, DoReFa, NaturalDithering
from laconic.compression.level_tables import Tabled, bucket_norms, lost, mirrored, omega, rounded
from laconic.compression.rotated import KLevel
from laconic.compression.stochastic_levels import QSGD
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor

MEETING = Meeting(0, 1, 0, "x")
KINDS = ["normal", "heavy", "sparse", "constant"]
TABLES = st.sets(st.integers(-999, 999), max_size=12).map(
    lambda inner: torch.tensor(sorted({-1000, *inner, 1000})) / 1000
)


def decoded(codec: Codec, x: Tensor, step: int = 0) -> Tensor:
    meeting = replace(MEETING, step=step)
    return codec.decode(codec.encode(x, meeting), x.shape, meeting)


def repeated(made: Tabled, x: Tensor, draws: int) -> Tensor:
    """So many drawings of x, as buckets of one tensor that are all alike."""
    one = replace(made, bucket=x.numel())
    scales = one.scales(x).repeat_interleave(draws)
    codes = one.coded(x.repeat(draws), scales, kernels.uniform(MEETING.key(), 0, draws * x.numel()))
    return one.decoded(codes, scales).view(draws, -1).double()


def assert_mean(found: Tensor, expected: Tensor, variance: Tensor) -> None:
    """The mean over the first dimension is within four standard errors; `variance` is of one draw."""
    error = (found.mean(dim=0) - expected.double()).abs()
    allowed = 4 * (variance.double().clamp(min=0) / len(found)).sqrt() + 2e-6 * expected.abs().double()
    assert bool((error <= allowed).all()), float((error / allowed).max())


def exact(made: Tabled, x: Tensor) -> Tensor:
    """What each value of a bucket loses in the mean, from its two neighbours in the table."""
    scale = bucket_norms(x, x.numel(), made.scale).double()
    return scale**2 * lost(x.double() / scale.where(scale > 0, 1), made.table.double())


def factor(found: Tensor, x: Tensor) -> float:
    """The variance, as a share of the square of x."""
    return float((found - x).square().sum(dim=-1).mean() / x.double().square().sum())


# ---------------------------------------------------------------------------------------------- the rounding


@given(table=TABLES, x=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_any_table_is_right_in_the_mean_and_loses_what_its_gaps_say(table: Tensor, x: list[float]) -> None:
    """A thousand equally spaced draws: their mean is the value to a thousandth of a gap."""
    values, many = torch.tensor(x), 1000
    draws = ((torch.arange(many) + 0.5) / many)[:, None].expand(-1, len(x))
    codes = rounded(values.expand(many, -1).contiguous(), table, draws)
    sent = table[codes].double()
    wide = float(table.diff().max())
    assert bool(((sent.mean(dim=0) - values).abs() <= wide / many).all())
    assert bool(((codes.amax(dim=0) - codes.amin(dim=0)) <= 1).all()), "only neighbours"
    measured = (sent - values).square().mean(dim=0)
    assert bool(((measured - lost(values.double(), table.double())).abs() <= 2 * wide**2 / many + 1e-7).all())


def test_beyond_the_table_are_its_ends_and_levels_are_themselves() -> None:
    table = torch.tensor([-1.0, -0.25, 0.0, 0.5, 1.0])
    for draw in (0.0, 0.5, 1 - 2**-24):
        assert torch.equal(rounded(table, table, torch.full((5,), draw)), torch.arange(5))
        beyond = torch.tensor([-1.5, -math.inf, 1.5, math.inf])
        assert rounded(beyond, table, torch.full((4,), draw)).tolist() == [0, 0, 4, 4]


@given(table=TABLES, norm=st.sampled_from(["l2", "max"]), seed=st.integers(0, 999), n=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_variance_of_a_table_is_a_bound(table: Tensor, norm: str, seed: int, n: int) -> None:
    x = tensor(KINDS[seed % 4], (n,), seed).double()
    if not x.any():
        return
    scale = x.norm() if norm == "l2" else x.abs().max()
    share = scale**2 * lost(x / scale, table.double()).sum() / x.square().sum()
    assert float(share) <= omega(table, n) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("size", [1e-30, 1e36])
@pytest.mark.parametrize(
    "made", [DoReFa(), QNN(), Binary(), NaturalDithering(), NUQSGD(), NaturalDithering(norm="max")]
)
def test_neither_large_nor_small_values_are_lost(made: Codec, size: float) -> None:
    """Their squares do not exist in float32; what is sent is the same in units of the size."""
    x = tensor("normal", (200,))
    torch.testing.assert_close(decoded(made, x * size) / size, decoded(made, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bucket", [1, 7, 16, 200, 512])
@pytest.mark.parametrize("made", [DoReFa(), Binary(), NaturalDithering(), NUQSGD(), NUQSGD(coding="elias")])
def test_buckets_have_scales_of_their_own(made: Tabled, bucket: int) -> None:
    """A bucket's message is what it would be alone, so that one large value spoils its own bucket only."""
    x = tensor("heavy", (200,))
    x[:bucket] *= 1e6
    found = decoded(replace(made, bucket=bucket), x)
    draws = kernels.uniform(MEETING.key(), 0, 200)
    for first in range(0, 200, bucket):
        part, alone = x[first : first + bucket], replace(made, bucket=0)
        scales = alone.scales(part)
        expected = alone.decoded(alone.coded(part, scales, draws[first : first + bucket]), scales)
        torch.testing.assert_close(found[first : first + bucket], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("made", [DoReFa(), QNN(), Binary(), NaturalDithering(), NUQSGD()])
def test_a_bucket_with_a_value_that_is_not_finite_is_not_finite(made: Tabled, poison: float) -> None:
    x = tensor("normal", (64,))
    x[20] = poison
    found = decoded(replace(made, bucket=16), x)
    assert not bool(found[16:32].isfinite().any())
    assert bool(found[:16].isfinite().all()) and bool(found[32:].isfinite().all())


# ---------------------------------------------------------------------------------------------- dorefa


@pytest.mark.technique("dorefa", check=1)
@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_dorefa_is_right_in_the_mean(k: int, kind: str) -> None:
    """At every element, and at the largest magnitude always."""
    x, made = tensor(kind, (60,)), DoReFa(bits=k)
    found = repeated(made, x, 10_000)
    assert_mean(found, x, exact(made, x))
    largest = int(x.abs().argmax())
    assert bool((found[:, largest] == x[largest]).all())


@pytest.mark.technique("dorefa", check=1)
@given(k=st.integers(1, 8), kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_dorefa_is_the_papers_noise_before_rounding(k: int, kind: str, seed: int) -> None:
    """2M(round(x/2M + 1/2 + u/steps) - 1/2) with the noise u = 1/2 - draw, where that is not on a boundary."""
    x, steps = tensor(kind, (50,), seed), 2**k - 1
    made, draws = DoReFa(bits=k), kernels.uniform(seed, 0, 50)
    scales = made.scales(x)
    found = made.decoded(made.coded(x, scales, draws), scales)
    most = x.double().abs().max()
    place = steps * (x.double() / (2 * most) + 0.5) + 0.5 - draws
    expected = 2 * most * (place.round() / steps - 0.5)
    clear = (place - place.floor() - 0.5).abs() > 1e-4
    torch.testing.assert_close(found[clear].double(), expected[clear], rtol=1e-6, atol=1e-6 * float(most))


@pytest.mark.long
@pytest.mark.technique("dorefa", check=2)
@given(k=st.integers(1, 12), n=st.integers(1, 900), kind=st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None)
def test_dorefa_sends_one_of_2_to_the_k_values_in_k_bits(k: int, n: int, kind: str) -> None:
    x, made = tensor(kind, (n,)), DoReFa(bits=k)
    found, most = decoded(made, x), x.abs().max()
    points = (found / most.where(most > 0, 1) * (2**k - 1)).round()
    assert points.unique().numel() <= 2**k and bool((found.abs() <= most).all())
    assert len(made.table) == 2**k
    assert made.encode(x, MEETING).nbytes == made.payload_bytes(spec_of(x), 1) == math.ceil(k * n / 8) + 4


# ---------------------------------------------------------------------------------------------- qnn


@pytest.mark.technique("qnn", check=1)
@pytest.mark.parametrize("x", [-1.0, -0.999, -0.5, -0.01, 0.0, 1e-3, 0.3, 0.77, 1.0])
def test_binarisation_of_what_is_within_one_is_right_in_the_mean(x: float) -> None:
    found = decoded(QNN(range="one"), torch.full((100_000,), x)).double()
    assert set(found.unique().tolist()) <= {-1.0, 1.0}
    assert abs(float(found.mean()) - x) <= 4 * math.sqrt((1 - x * x) / 100_000) + 1e-7


@pytest.mark.technique("qnn", check=1)
@given(x=st.floats(1, 2.0**127, width=32, exclude_min=True), step=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_beyond_one_it_is_the_sign(x: float, step: int) -> None:
    found = decoded(QNN(range="one"), torch.tensor([x, -x]).repeat(500), step).view(-1, 2)
    assert torch.equal(found, torch.tensor([[1.0, -1.0]]).expand(500, 2))


@pytest.mark.technique("qnn", check=2)
@pytest.mark.parametrize("kind", KINDS)
def test_each_element_loses_the_scale_squared_less_its_own_square(kind: str) -> None:
    g, draws = tensor(kind, (40,)), 20_000
    s = g.abs().max().double()
    found = repeated(QNN(), g, draws)
    expected = s**2 - g.double() ** 2
    squares = (found - g.double()) ** 2
    noise = 4 * squares.std(dim=0) / math.sqrt(draws) + 1e-6 * s**2
    assert bool(((squares.mean(dim=0) - expected).abs() <= noise).all())
    assert_mean(found, g, expected)


@pytest.mark.technique("qnn", check=3)
@given(n=st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_binarisation_takes_a_bit_each_and_a_scale(n: int) -> None:
    x = tensor("normal", (n,))
    assert QNN().encode(x, MEETING).nbytes == QNN().payload_bytes(spec_of(x), 1) == math.ceil(n / 8) + 4
    assert QNN(range="one").encode(x, MEETING).nbytes == math.ceil(n / 8)


# ---------------------------------------------------------------------------------------------- suresh_binary


@pytest.mark.technique("suresh_binary", check=1)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse"])
def test_binary_loses_what_the_formula_says(kind: str) -> None:
    x = tensor(kind, (300,))
    found = repeated(Binary(), x, 2000)
    low, high = x.double().min(), x.double().max()
    assert set(found.unique().tolist()) == {float(low), float(high)}, "the ends, to the bit"
    expected = ((high - x.double()) * (x.double() - low)).sum()
    assert float((found - x).square().sum(dim=1).mean()) == pytest.approx(float(expected), rel=0.03)
    assert_mean(found, x, (high - x.double()) * (x.double() - low))


@pytest.mark.technique("suresh_binary", check=2)
@given(n=st.integers(1, 3000), kind=st.sampled_from(KINDS))
@settings(max_examples=40, deadline=None)
def test_binary_takes_a_bit_each_and_two_ends(n: int, kind: str) -> None:
    x = tensor(kind, (n,))
    assert Binary().encode(x, MEETING).nbytes == Binary().payload_bytes(spec_of(x), 1) == math.ceil(n / 8) + 8


@pytest.mark.technique("suresh_binary", check=2)
def test_the_error_of_the_mean_falls_with_the_number_of_workers() -> None:
    inputs = [tensor("normal", (3000,), rank) for rank in range(8)]
    each = [float(((x.max() - x) * (x - x.min())).double().sum()) for x in inputs]
    for workers in (1, 2, 4, 8):
        mean = torch.stack(inputs[:workers]).double().mean(dim=0)
        found = [meet(Binary(), inputs[:workers], step=step)[0].result for step in range(15)]
        error = (torch.stack(found).double() - mean).square().sum(dim=1).mean()
        assert float(error) == pytest.approx(sum(each[:workers]) / workers**2, rel=0.03)


@pytest.mark.long
@given(kind=st.sampled_from([*KINDS, "zero"]), n=st.integers(1, 300), step=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_two_levels_of_klevel_are_the_same_for_the_same_draws(kind: str, n: int, step: int) -> None:
    x = tensor(kind, (n,))
    torch.testing.assert_close(decoded(Binary(), x, step), decoded(KLevel(levels=2), x, step), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------------------------- natural_dithering


@pytest.mark.technique("natural_dithering", check=1)
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("s", [1, 7, 15])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_natural_dithering_is_right_in_the_mean_with_the_papers_variance(kind: str, s: int, norm: str) -> None:
    x, n = tensor(kind, (64,)), 64
    made = NaturalDithering(levels=s, norm=norm)
    found = repeated(made, x, 4000)
    assert_mean(found, x, exact(made, x))
    last = math.sqrt(n) * 2.0 ** (1 - s)
    paper = 1 / 8 + last * min(1, last)
    assert factor(found, x) < paper and made.variance(spec_of(x)) <= paper


@pytest.mark.technique("natural_dithering", check=2)
@given(s=st.integers(1, 7), norm=st.sampled_from(["l2", "max"]), kind=st.sampled_from(KINDS), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_halvings_cost_an_eighth_more_than_exponentially_many_equal_levels(
    s: int, norm: str, kind: str, seed: int
) -> None:
    """Exactly, from the neighbours of every value, and in the numbers of bits."""
    x = tensor(kind, (50,), seed).double()
    x[0] = 1.0
    scale = x.norm() if norm == "l2" else x.abs().max()
    made, uniform = NaturalDithering(levels=s, norm=norm), QSGD(levels=2 ** (s - 1), norm=norm)
    equal = torch.linspace(-1, 1, 2 * uniform.levels + 1, dtype=torch.float64)
    own, other = (lost(x / scale, table).sum() * scale**2 / x.square().sum() for table in (made.table.double(), equal))
    assert float(own) <= float(other) + 1 / 8 + 1e-9
    assert made.width - 1 == math.ceil(math.log2(s + 1)) and uniform.bits - 1 == s


@pytest.mark.technique("natural_dithering", check=2)
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_so_do_the_codecs_themselves(norm: str) -> None:
    """Measured: four bits of halvings against seven and a sign of equal levels."""
    x = tensor("normal", (512,))
    own = factor(repeated(NaturalDithering(norm=norm), x, 200), x)
    other = factor(decoded(QSGD(levels=64, bucket=512, norm=norm), x.repeat(200)).view(200, -1).double(), x)
    assert other < own <= other + 1 / 8
    natural, equal = (c.payload_bytes(spec_of(x), 1) for c in (NaturalDithering(), QSGD(levels=64)))
    assert (natural - 4, equal - 4) == (512 * 4 // 8, 512 * 8 // 8)


# ---------------------------------------------------------------------------------------------- nuqsgd


@pytest.mark.technique("nuqsgd", check=1)
@pytest.mark.parametrize("s", [1, 4, 16])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_nuqsgd_is_right_in_the_mean_with_the_bound_on_its_variance(s: int, kind: str) -> None:
    d, x = 64, tensor(kind, (64,))
    made = NUQSGD(s=s, bucket=d)
    found = repeated(made, x, 4000)
    assert_mean(found, x, exact(made, x))
    bound = 1 / 8 + min(d * 2.0 ** (-2 * s - 2), math.sqrt(d) * 2.0**-s)
    assert factor(found, x) < bound
    assert made.variance(spec_of(x)) <= bound * (1 + 1e-12)


@pytest.mark.technique("nuqsgd", check=2)
def test_halving_levels_lose_less_than_equal_ones_of_four_bits() -> None:
    """On Gaussian buckets of 8192, l2 norms, the same bytes."""
    x = tensor("normal", (20 * 8192,))
    own, other = NUQSGD(), QSGD(levels=7, bucket=8192)
    assert own.bucket == 8192 and own.width == other.bits == 4
    assert own.payload_bytes(spec_of(x), 1) == other.payload_bytes(spec_of(x), 1)
    lose = [
        (decoded(made, x) - x).view(-1, 8192).square().sum(1) / x.view(-1, 8192).square().sum(1)
        for made in (own, other)
    ]
    assert bool((lose[0] < lose[1]).all()) and float(lose[0].mean()) < 0.1 * float(lose[1].mean())


@pytest.mark.parametrize("kind", [*KINDS, "zero", "single", "long"])
def test_the_coding_of_nuqsgd_changes_the_bytes_and_nothing_else(kind: str) -> None:
    x = tensor(kind)
    assert torch.equal(decoded(NUQSGD(coding="elias"), x), decoded(NUQSGD(), x))


def test_levels_can_be_written_in_a_chain() -> None:
    """Of what a selector chose, and in two hops."""
    x = tensor("normal")
    for text in ("topk(0.1)+nuqsgd", "dorefa+two_hop", "suresh_binary(bucket=16)+two_hop", "natural_dithering+ef"):
        assert meet(compressor(text), [x, x])[0].result.isfinite().all()
    assert torch.equal(mirrored(torch.tensor([0.5, 1.0])), torch.tensor([-1.0, -0.5, 0.5, 1.0]))


@pytest.mark.parametrize("s", [0, 3, 6])
def test_values_on_the_highest_level_fill_what_nuqsgd_promises(s: int) -> None:
    """Each value alone is its bucket's norm, so that all lie on the highest level, whose code is the longest."""
    made, x = compressor(f"nuqsgd(bucket=1, s={s}, coding=elias)"), tensor("normal", (41,))
    messages: list[list[tuple[str, torch.Tensor]]] = []
    (outcome,) = meet(made, [x], payloads=messages)
    assert sum(part.nbytes for _, part in messages[0]) == made.payload_bytes(spec_of(x), 1)
    torch.testing.assert_close(outcome.result, x)
