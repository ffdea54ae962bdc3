"""Random supports: chances, what is sent in the mean, how far from it, and in how many bytes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.selector import share_of
from laconic.compression.unbiased_sparse import GSpar, KonecnyRichtarik, filled, least_count
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from tests.compression.table import meet, spec_of, tensor

MEET = Meeting(0, 1, 0, "x")
SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def energy(x: Tensor) -> float:
    return float(x.double().square().sum())


def draws(made: GSpar | KonecnyRichtarik, x: Tensor, count: int) -> Tensor:
    """What is decoded, in so many steps."""
    meetings = [Meeting(0, 1, step, "x") for step in range(count)]
    return torch.stack([made.decode(made.encode(x, m), x.shape, m) for m in meetings]).double()


# ---------------------------------------------------------------------------------------------- gspar


@given(st.integers(2, 500), st.floats(0.01, 20), st.sampled_from(["normal", "heavy", "sparse"]), SEEDS)
@settings(max_examples=100, deadline=None)
@pytest.mark.technique("gspar", check=1)
def test_the_sort_meets_the_variance_exactly(numel: int, epsilon: float, kind: str, seed: int) -> None:
    size = tensor(kind, (numel,), seed).abs().double()
    if not bool(size.any()):
        return
    chance = (size * least_count(size, epsilon)).clamp(max=1)
    sent = size > 0
    assert float((size[sent] ** 2 / chance[sent]).sum()) == pytest.approx((1 + epsilon) * energy(size), rel=1e-6)


@pytest.mark.technique("gspar", check=1)
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.3, 0.5])
def test_three_greedy_rounds_meet_the_count(ratio: float) -> None:
    for seed in range(5):
        size = normal(seed, 20_000).abs().double()
        k = share_of(ratio, 20_000)
        assert float((size * filled(size, k, 3)).clamp(max=1).sum()) == pytest.approx(k, rel=1e-6)


@pytest.mark.long
@pytest.mark.technique("gspar", check=2)
@pytest.mark.parametrize("solver", ["greedy", "exact"])
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_gspar_is_right_in_the_mean_and_sends_one_magnitude_where_it_draws(solver: str, kind: str) -> None:
    made, x = GSpar(0.2, solver=solver, epsilon=2.0), tensor(kind, (60,))
    scale = made.scale(x.abs())
    found = draws(made, x, 600)
    chance = (x.abs() * scale).clamp(max=1)
    drawn = found[:, chance < 1]
    assert bool(torch.isin(drawn.abs(), torch.tensor([0.0, torch.tensor(1 / scale)], dtype=torch.float64)).all())
    assert torch.equal(found[:, chance == 1], x[chance == 1].double().expand(600, -1))
    deviation = x.abs() * (1 / chance - 1).sqrt() / math.sqrt(600)
    assert bool(((found.mean(dim=0) - x).abs() <= 4 * deviation + 1e-6).all())


@pytest.mark.long
@pytest.mark.technique("gspar", check=3)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse"])
@pytest.mark.parametrize("ratio", [0.02, 0.2])
def test_for_the_same_count_its_variance_is_below_that_of_uniform_places(kind: str, ratio: float) -> None:
    made, x = GSpar(ratio), tensor(kind, (500,))
    k = share_of(ratio, 500)
    chance = (x.abs() * made.scale(x.abs())).clamp(max=1)
    sent = x != 0
    exactly = float((x[sent].double() ** 2 * (1 / chance[sent].double() - 1)).sum())
    uniform = (500 / k - 1) * energy(x)
    assert float(chance.sum()) <= k * (1 + 1e-5)
    assert exactly < uniform
    found = (draws(made, x, 200) - x).square().sum(dim=1)
    assert float(found.mean()) <= exactly + 4 * float(found.std()) / math.sqrt(200) + 1e-9
    assert float(found.mean()) < uniform


@pytest.mark.long
@given(st.integers(1, 400), st.floats(0.002, 1.0), st.sampled_from(["normal", "heavy", "sparse", "zero"]), SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_message_is_the_hybrid_code(numel: int, ratio: float, kind: str, seed: int) -> None:
    """|S| values and places, the shorter of a list and a map for the others, one value, and two counts."""
    made, x = GSpar(ratio), tensor(kind, (numel,), seed)
    chance = x.abs() * made.scale(x.abs())
    payload = made.encode(x, MEET)
    sent = made.decode(payload, x.shape, MEET)
    certain, width = int((chance >= 1).sum()), max(1, (numel - 1).bit_length())
    others = int((sent != 0).sum()) - certain
    rest = min(others * (width + 1), 2 * numel)
    assert len(payload) == 8 + 4 + 4 * certain + math.ceil(certain * width / 8) + math.ceil(rest / 8)
    assert len(payload) <= made.payload_bytes(spec_of(x), 1)


# ---------------------------------------------------------------------------------------------- konecny_richtarik


@pytest.mark.technique("konecny_richtarik", check=1)
@pytest.mark.parametrize("centre", ["mean", "zero"])
@pytest.mark.parametrize(("support", "keep"), [("variable", "uniform"), ("variable", "optimal"), ("fixed", "uniform")])
def test_the_error_of_the_mean_is_the_formulas(support: str, keep: str, centre: str) -> None:
    """Σ (1/p - 1)(x - μ)²/P² over all nodes, by drawing."""
    made = KonecnyRichtarik(0.25, support=support, keep=keep, centre=centre)
    nodes, expected = [1.0 + normal(rank, 3000) for rank in range(3)], 0.0
    for x in nodes:
        away = x - made.middle(x)
        expected += float(((1 / made.chances(away) - 1) * away.square()).double().sum()) / 9
    steps = 60
    total = torch.zeros(steps)
    mean = torch.stack(nodes).mean(dim=0)
    for step in range(steps):
        sent = sum(
            made.decode(made.encode(x, m := Meeting(rank, 3, step, "x")), x.shape, m) for rank, x in enumerate(nodes)
        )
        total[step] = (sent / 3 - mean).square().sum()
    assert float(total.mean()) == pytest.approx(expected, rel=0.03)


@pytest.mark.long
@given(st.integers(1, 400), st.floats(0.005, 1.0), SEEDS, st.sampled_from(["mean", "zero"]))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("konecny_richtarik", check=2)
def test_protocols_send_the_same_in_the_bytes_of_their_formulas(
    numel: int, ratio: float, seed: int, centre: str
) -> None:
    """r = 32 bits a value, and a seed of 64; bits are filled up to bytes."""
    x, width = normal(seed, numel), max(1, (numel - 1).bit_length())
    for support, keep in [
        ("variable", "uniform"),
        ("variable", "optimal"),
        ("fixed", "uniform"),
        ("variable", "range"),
    ]:
        protocols = ("naive", "bitmap", "list", "seed")[: 4 if keep == "uniform" else 3]
        made = [KonecnyRichtarik(ratio, support, keep, centre, protocol) for protocol in protocols]
        payloads = [one.encode(x, MEET) for one in made]
        sent = [one.decode(payload, x.shape, MEET) for one, payload in zip(made, payloads, strict=True)]
        d = len(made[0].drawn(made[0].chances(x - made[0].middle(x)), MEET.key()))
        bits = [32 * numel, numel + 32 + 32 * (1 if keep == "range" else d), 32 + d * (width + 32), 32 + 64 + 32 * d]
        for one, payload, decoded, length in zip(made, payloads, sent, bits, strict=False):
            assert len(payload) == math.ceil(length / 8) <= one.payload_bytes(spec_of(x), 1)
            torch.testing.assert_close(decoded, sent[0], rtol=1e-6, atol=1e-6 if keep == "range" else 0.0)


@given(st.integers(2, 400), st.floats(0.01, 1.0), st.sampled_from(["normal", "heavy", "sparse"]), SEEDS)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("konecny_richtarik", check=3)
def test_optimal_chances_have_no_larger_error_than_equal_ones(numel: int, ratio: float, kind: str, seed: int) -> None:
    made, equal = KonecnyRichtarik(ratio, keep="optimal"), KonecnyRichtarik(ratio)
    x = tensor(kind, (numel,), seed)
    away = (x - made.middle(x)).double()
    sent = away != 0
    best, uniform = made.chances(away), equal.chances(away)
    k = made.count(numel)
    if k < numel:
        assert float(best.sum()) == pytest.approx(min(k, int(sent.sum())), rel=1e-5)
    errors = [float(((1 / p[sent] - 1) * away[sent].square()).sum()) for p in (best, uniform)]
    assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-9


@pytest.mark.long
def test_binary_is_the_range_of_two_values() -> None:
    made, x = KonecnyRichtarik(keep="range", protocol="bitmap"), normal(0, 50)
    found = draws(made, x, 500)
    low, high = x.min().double(), x.max().double()
    assert bool((((found - low).abs() < 1e-5) | ((found - high).abs() < 1e-5)).all())
    assert float((found.mean(dim=0) - x).abs().max()) <= 5 * float(high - low) / 2 / math.sqrt(500)
    assert len(made.encode(x, MEET)) == 8 + 7


@pytest.mark.parametrize("wrong", [{"support": "fixed", "keep": "optimal"}, {"keep": "range", "protocol": "seed"}])
def test_what_no_receiver_could_repeat_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(StrategyError, match="write protocol=list"):
        KonecnyRichtarik(**wrong)  # type: ignore[arg-type]


def test_workers_draw_their_own_supports() -> None:
    outcomes = meet(KonecnyRichtarik(0.1, centre="zero"), [torch.ones(200), torch.ones(200)])
    assert not torch.equal(outcomes[0].sent, outcomes[1].sent)  # type: ignore[arg-type]
