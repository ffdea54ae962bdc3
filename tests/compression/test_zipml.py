"""ZipML: optimal levels against brute force and uniform ones, and least squares on samples that are drawn twice."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic import kernels
from laconic.compression.codes import bits
from laconic.compression.level_tables import lost, rounded
from laconic.compression.optimal_levels import optimal_levels
from laconic.compression.zipml import ZipML, both, least_squares, twice
from laconic.runtime.meeting import Meeting
from tests.compression.table import spec_of, tensor

MEETING = Meeting(0, 1, 0, "x")


def cost(values: Tensor, levels: Tensor) -> float:
    return float(lost(values.double(), levels.double()).sum())


def problem(samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copies of one sample, its label, a model, and a coarse table."""
    a = torch.tensor([0.9, -0.31, 0.05, 0.62, -0.77], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0, 3.0, 0.5, -1.5], dtype=torch.float64)
    return (
        a.expand(samples, -1).contiguous(),
        torch.full((samples,), 0.7).double(),
        x,
        torch.linspace(-1, 1, 4).double(),
    )


@pytest.mark.technique("zipml", check=1)
def test_gradients_of_samples_drawn_twice_are_right_in_the_mean_and_of_once_are_not() -> None:
    """A hundred thousand quantised least-squares gradients. One draw for both factors is wrong by the variance of the
    rounding times x."""
    many = 100_000
    a, b, x, table = problem(many)
    draws = [kernels.uniform(key, 0, a.numel()).view_as(a) for key in (1, 2, 3)]
    true = a[0] * (a[0] @ x - b[0])
    pair = both(twice(a, table, *draws[:2]), table, draws[2])
    found = least_squares(*pair, x, b)
    deviation = found.std(dim=0) / math.sqrt(many)
    assert bool(((found.mean(dim=0) - true).abs() <= 4 * deviation).all())
    once = table[rounded(a, table, draws[0])]
    wrong = least_squares(once, once, x, b)
    bias, deviation = wrong.mean(dim=0) - true, wrong.std(dim=0) / math.sqrt(many)
    assert bool((bias.abs() > 4 * deviation).all())
    assert bool(((bias - lost(a[0], table) * x).abs() <= 4 * deviation).all())


@pytest.mark.technique("zipml", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_model_learns_from_samples_in_three_bits_what_it_learns_from_the_samples(seed: int) -> None:
    """Four levels, two roundings drawn anew in each pass; the mean of the last models. With one rounding in both
    factors it learns something else, as with a weight decay."""
    made = torch.Generator().manual_seed(seed)
    a = torch.rand(400, 5, generator=made, dtype=torch.float64) * 2 - 1
    b = a @ torch.tensor([1.0, -2.0, 3.0, 0.5, -1.5]).double() + 0.1 * torch.randn(400, generator=made).double()
    table, exact = torch.linspace(-1, 1, 4).double(), torch.linalg.lstsq(a, b[:, None]).solution.view(-1)
    models: dict[str, Tensor] = {}
    for samples in ("twice", "once"):
        x, late = torch.zeros(5, dtype=torch.float64), []
        for step in range(600):
            draws = [kernels.uniform(3 * step + k + 10_000 * seed, 0, a.numel()).view_as(a) for k in range(3)]
            pair = both(twice(a, table, *draws[:2]), table, draws[2])
            x = x - 0.5 * least_squares(pair[0], pair[0] if samples == "once" else pair[1], x, b).mean(dim=0)
            late += [x] if step >= 100 else []
        models[samples] = torch.stack(late).mean(dim=0)
    apart = {samples: float((x - exact).norm() / exact.norm()) for samples, x in models.items()}
    assert apart["twice"] < 0.02 and apart["once"] > 0.1


@given(count=st.integers(2, 17), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_second_draw_takes_one_bit(count: int, seed: int) -> None:
    """The sum of two numbers of neighbouring levels says both of them, up to their order."""
    x, table = torch.rand(200, generator=torch.Generator().manual_seed(seed)), torch.linspace(0, 1, count)
    one, other = (rounded(x, table, kernels.uniform(2 * seed + k, 0, 200)) for k in range(2))
    sent = twice(x, table, *(kernels.uniform(2 * seed + k, 0, 200) for k in range(2)))
    width = bits.width(int(count - 1))
    assert int(sent.max()) < 2 ** (width + 1)
    read = bits.unpack(bits.pack(sent, width + 1), width + 1, 200).long()
    pair = torch.stack(both(read, table, kernels.uniform(seed, 0, 200)))
    assert torch.equal(pair.sort(dim=0).values, table[torch.stack([one, other])].sort(dim=0).values)


@pytest.mark.technique("zipml", check=2)
@given(
    kind=st.sampled_from(["normal", "heavy", "sparse", "constant"]),
    n=st.integers(1, 3000),
    count=st.integers(2, 16),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_fitted_levels_lose_no_more_than_uniform_ones(kind: str, n: int, count: int, seed: int) -> None:
    x = tensor(kind, (n,), seed)
    table = ZipML(levels=count).fitted(x, MEETING)
    span = float(x.max()) - float(x.min())
    uniform = torch.linspace(0, 1, count).double() * span + float(x.min())
    assert cost(x, table) <= cost(x, uniform) * (1 + 1e-6) + 1e-7 * n * span**2
    assert len(table) == count and bool((table.diff() >= 0).all())
    assert table[0] == x.min() and table[-1] == x.max()


@pytest.mark.technique("zipml", check=2)
@pytest.mark.parametrize("n", [100, 20_000, 200_000])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_they_lose_much_less_of_skewed_values(n: int, count: int) -> None:
    """Fifth powers of Gaussians, and exponential values: less than 0.7 of it."""
    skewed = [tensor("heavy", (n,)), -torch.log(torch.rand(n, generator=torch.Generator().manual_seed(1)))]
    for x in skewed:
        uniform = torch.linspace(float(x.min()), float(x.max()), count)
        assert cost(x, ZipML(levels=count).fitted(x, MEETING)) < 0.7 * cost(x, uniform)


@pytest.mark.long
@pytest.mark.technique("zipml", check=3)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=12, max_size=12),
    count=st.integers(2, 6),
)
@settings(max_examples=60, deadline=None)
def test_the_dynamic_programme_finds_what_brute_force_does(values: list[int], count: int) -> None:
    """Of all choices of levels among twelve points."""
    x = torch.tensor(values).double()
    found = torch.from_numpy(optimal_levels(x.numpy(), count))
    points = sorted(set(values))
    inner = combinations(points[1:-1], min(count - 2, max(0, len(points) - 2)))
    best = min(cost(x, torch.tensor([points[0], *chosen, points[-1]]).double()) for chosen in inner)
    assert cost(x, found) == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_nor_are_levels_between_the_points_better() -> None:
    """Tried at random: an optimum has its levels at points."""
    x = torch.tensor(np.random.default_rng(3).normal(size=12))
    best = cost(x, torch.from_numpy(optimal_levels(x.numpy(), 5)))
    draw = np.random.default_rng(4)
    for _ in range(500):
        inner = np.sort(draw.uniform(float(x.min()), float(x.max()), 3))
        levels = torch.tensor([float(x.min()), *inner, float(x.max())]).double()
        assert best <= cost(x, levels) + 1e-12


@pytest.mark.long
def test_candidates_are_thinned_at_little_loss() -> None:
    """2000 points: 256 candidates, against all of them."""
    x = tensor("heavy", (2000,)).double().numpy()
    thinned, all_of_them = (optimal_levels(x, 8, most) for most in (256, 2000))
    values = torch.from_numpy(x)
    assert cost(values, torch.from_numpy(thinned)) <= 1.05 * cost(values, torch.from_numpy(all_of_them))


@pytest.mark.long
@given(n=st.integers(1, 2000), count=st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_a_message_is_level_numbers_and_the_table(n: int, count: int) -> None:
    x, made = tensor("normal", (n,)), ZipML(levels=count)
    expected = math.ceil(n * math.ceil(math.log2(count)) / 8) + 4 * count
    assert made.encode(x, MEETING).nbytes == made.payload_bytes(spec_of(x), 1) == expected


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_makes_nothing_finite(poison: float) -> None:
    x = tensor("normal", (50,))
    x[9] = poison
    assert bool(ZipML().decode(ZipML().encode(x, MEETING), x.shape, MEETING).isnan().all())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_few_far_values_get_levels_of_their_own(seed: int) -> None:
    """Quantiles alone would hardly try a level among them, and a grid alone none among the many near zero."""
    draw = np.random.default_rng(seed)
    x = np.concatenate([1e-3 * draw.normal(size=2000), np.sqrt(draw.uniform(size=2))])
    tables = optimal_levels(x, 4), optimal_levels(x, 4, most=2100), np.linspace(x.min(), x.max(), 4)
    thinned, best, uniform = (float(cost(torch.from_numpy(x), torch.from_numpy(table))) for table in tables)
    assert best <= thinned <= 1.05 * best < 0.1 * uniform


@pytest.mark.parametrize("levels", [2, 3, 5, 9, 16])
def test_every_level_is_read_as_it_was_written(levels: int) -> None:
    """Values that are levels already arrive as they are, in the bytes of the numbers and of the table."""
    x = torch.linspace(-1.0, 3.0, levels).repeat(7)
    made, meeting = ZipML(levels=levels), Meeting(0, 1, 0, "x")
    payload = made.encode(x, meeting)
    assert payload.numel() == math.ceil(7 * levels * (levels - 1).bit_length() / 8) + 4 * levels
    torch.testing.assert_close(made.decode(payload, x.shape, meeting), x)
