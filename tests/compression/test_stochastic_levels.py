"""Rounding to levels at random: QSGD and its Elias codes, TernGrad, natural compression, with and without rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Outcome
from laconic.compression.codec import Codec
from laconic.compression.codes import bits, elias
from laconic.compression.rotated import KLevel, Rotated
from laconic.compression.stochastic_levels import QSGD, Natural, TernGrad, clipped
from laconic.errors import ContractError, StrategyError
from laconic.kernels import draws
from laconic.runtime.meeting import Meeting
from laconic.strategy import Strategy
from tests.compression.table import answer_requests, meet, spec_of, tensor
from tests.data import fixture

MEETING = Meeting(0, 1, 0, "x")


def decoded(codec: Codec, x: Tensor, step: int = 0) -> Tensor:
    meeting = replace(MEETING, step=step)
    return codec.decode(codec.encode(x, meeting), x.shape, meeting)


def assert_mean(found: Tensor, expected: Tensor, deviation: Tensor) -> None:
    """The mean over the first dimension is within four standard errors; `deviation` is of one draw."""
    error = (found.double().mean(dim=0) - expected.double()).abs()
    allowed = 4 * deviation.double() / math.sqrt(len(found)) + 1e-6 * expected.abs().double()
    assert bool((error <= allowed).all()), float((error / allowed).max())


# ---------------------------------------------------------------------------------------------- recorded draws


@dataclass(frozen=True)
class Given(Meeting):
    """A meeting whose draws come from a key that is given."""

    given: int = 0

    def key(self, what: str = "", *, shared: bool = False) -> int:
        return self.given


def unshifted(h: int, shift: int, width: int) -> int:
    """What `h ^ (h >> shift)` was."""
    found = h
    for _ in range(width // shift):
        found = h ^ (found >> shift)
    return found


def key_of(draw: float, place: int) -> int:
    """A key under which the draw of this place is this one, to 24 bits: the mixing of `draws`, backwards."""
    h = unshifted(int(draw * 2**draws.BITS) << (32 - draws.BITS), draws.SHIFTS[2], 32)
    h = unshifted(h * pow(draws.SECOND, -1, 1 << 32) & draws.MASK, draws.SHIFTS[1], 32)
    key = h << 32 | place  # with the place for its lower half, what is multiplied first is zero
    key = unshifted(key, 31, 64) * pow(0x94D049BB133111EB, -1, 1 << 64) & (1 << 64) - 1
    key = unshifted(key, 27, 64) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & (1 << 64) - 1
    return unshifted(key, 30, 64)


@pytest.mark.long
@given(draw=st.integers(0, 2**24 - 1), place=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_a_key_can_be_found_for_a_draw(draw: int, place: int) -> None:
    assert kernels.integers(key_of(draw * 2**-24, place), place, 1).item() == draw


def alone(made: Compressor, x: Tensor, meeting: Meeting) -> Outcome:
    """An exchange of one worker with itself."""
    exchange, answer = made.exchange(x.clone(), made.init(spec_of(x)), meeting), None
    while True:
        try:
            request: Any = exchange.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        answer = answer_requests([request])[0]


def with_draws(made: Compressor, x: Tensor, given: Any) -> Tensor:
    """What comes out if the draws are these: place by place, since a key gives all of them."""
    found = []
    for place, draw in enumerate(given):
        meeting = Given(0, 1, 0, "x", given=key_of(float(draw), place))
        found.append(alone(made, x, meeting).result[place])
    return torch.stack(found)


# ---------------------------------------------------------------------------------------------- qsgd

QSGD_LEVELS = [1, 4, 16, 64]


@pytest.mark.technique("qsgd", check=1)
@pytest.mark.parametrize("s", QSGD_LEVELS)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant"])
def test_qsgd_is_right_in_the_mean_with_the_papers_variance(s: int, kind: str) -> None:
    """Ten thousand buckets with the same values are as many draws."""
    d, v = 64, tensor(kind, (64,))
    found = decoded(QSGD(levels=s, bucket=d), v.repeat(10_000)).view(-1, d)
    a = s * v.abs().double() / v.double().norm()
    share = a - a.floor()
    assert_mean(found, v, v.double().norm() / s * (share * (1 - share)).sqrt())
    lost = (found.double() - v).square().sum(dim=1).mean()
    assert float(lost) < min(d / s**2, math.sqrt(d) / s) * float(v.double().square().sum())


@pytest.mark.long
@pytest.mark.technique("qsgd", check=2)
@given(s=st.integers(1, 127), d=st.integers(1, 600), buckets=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_bucket_takes_its_levels_of_a_fixed_width_and_a_norm(s: int, d: int, buckets: int) -> None:
    each = 1 + math.ceil(math.log2(s + 1))
    one, several = tensor("normal", (d,)), tensor("normal", (buckets * 8 * d,))
    assert QSGD(levels=s, bucket=d).encode(one, MEETING).nbytes == math.ceil(d * each / 8) + 4
    found = QSGD(levels=s, bucket=8 * d).encode(several, MEETING).nbytes
    assert found == buckets * (math.ceil(8 * d * each / 8) + 4)


@pytest.mark.long
@pytest.mark.technique("qsgd", check=2)
@given(
    numbers=st.lists(st.one_of(st.integers(-3, 3), st.integers(-200, 200), st.integers(-(2**47), 2**47)), max_size=80)
)
@settings(max_examples=200, deadline=None)
def test_elias_codes_are_read_as_they_were_written(numbers: list[int]) -> None:
    """Levels with their signs, and positive numbers, in exactly the bytes that the codes take."""
    levels = torch.tensor(numbers, dtype=torch.int64)
    written = elias.encode_signed(levels)
    assert torch.equal(elias.decode_signed(written, len(levels)), levels)
    assert written.nbytes == math.ceil(sum(elias.length(abs(n) + 1) + (n != 0) for n in numbers) / 8)
    positive = levels.abs() + 1
    assert torch.equal(elias.decode(elias.encode(positive), len(positive)), positive)
    assert elias.encode(positive).nbytes == math.ceil(sum(elias.length(abs(n) + 1) for n in numbers) / 8)


def test_every_window_has_the_64_bits_that_begin_at_its_bit() -> None:
    data = np.random.default_rng(3).integers(0, 256, 21).astype(np.uint8)
    bits_of = "".join(f"{byte:08b}" for byte in data) + 64 * "0"
    assert elias.windows_of(data).tolist() == [int(bits_of[at : at + 64], 2) for at in range(8 * len(data))]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((1, "0"), (2, "100"), (3, "110"), (4, "101000"), (7, "101110"), (8, "1110000"), (15, "1111110")),
        *((16, "10100100000"), (100, "1011011001000"), (1000, "11100111111010000")),
    ],
)
def test_elias_codes_are_the_published_ones(number: int, code: str) -> None:
    written = "".join(f"{byte:08b}" for byte in elias.encode(torch.tensor([number])).tolist())
    assert written == code.ljust(8 * math.ceil(len(code) / 8), "0") and elias.length(number) == len(code)


@pytest.mark.parametrize(("data", "count"), [([255] * 3, 1), ([0], 9), ([0, 0], 8), ([0], 0), ([255], 1), ([], 1)])
def test_bytes_that_are_no_elias_codes_are_refused(data: list[int], count: int) -> None:
    with pytest.raises(ContractError, match="are not the Elias codes of"):
        elias.decode(torch.tensor(data, dtype=torch.uint8), count)


@pytest.mark.parametrize("number", [0, -1, 2**48])
def test_numbers_without_an_elias_code_here_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="Elias codes here"):
        elias.encode(torch.tensor([number]))


@pytest.mark.technique("qsgd", check=2)
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("s", [1, 7, 127])
def test_the_coding_changes_the_bytes_and_nothing_else(s: int, norm: str) -> None:
    for kind in ("normal", "heavy", "sparse", "constant", "zero", "single", "long"):
        x = tensor(kind)
        fixed = QSGD(levels=s, norm=norm)
        assert torch.equal(decoded(replace(fixed, coding="elias"), x), decoded(fixed, x)), kind


@pytest.mark.technique("qsgd", check=3)
@pytest.mark.parametrize("s", [8, 16, 32, 64, 127])
def test_elias_codes_of_gaussian_values_take_about_three_bits(s: int) -> None:
    """In the dense regime, where s is the root of the bucket: every one of many buckets."""
    d = s * s
    made = QSGD(levels=s, bucket=d, coding="elias")
    sizes = [8 * made.encode(tensor("normal", (d,), seed), MEETING).nbytes for seed in range(20)]
    assert max(sizes) < 3.3 * d + 32


@pytest.mark.evidence("qsgd", recording="qsgd.npz")
@pytest.mark.long
def test_qsgd_does_what_graces_does() -> None:
    recorded = fixture("qsgd.npz")
    for k in range(4):
        s, x = int(recorded[f"s_{k}"]), torch.tensor(recorded[f"x_{k}"])
        made = QSGD(levels=s, bucket=x.numel())
        found, norm = with_draws(made, x, recorded[f"uniform01_{k}"]), kernels.norms(x, x.numel(), "l2")
        torch.testing.assert_close(norm, torch.tensor(recorded[f"norm_{k}"]), rtol=1e-5, atol=0)
        assert torch.equal((found * s / norm).round().to(torch.int8), torch.tensor(recorded[f"levels_{k}"]))
        torch.testing.assert_close(found, torch.tensor(recorded[f"decoded_{k}"]), rtol=1e-5, atol=0)


# ---------------------------------------------------------------------------------------------- terngrad


@pytest.mark.technique("terngrad", check=1)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant"])
def test_terngrad_without_clipping_is_right_in_the_mean(kind: str) -> None:
    """Ten thousand copies of a gradient have its largest magnitude, and as many draws."""
    g = tensor(kind, (60,))
    found = alone(TernGrad(clip=0), g.repeat(10_000), MEETING).result.view(-1, 60)
    s = g.abs().max()
    assert set(found.unique().tolist()) <= {-float(s), 0.0, float(s)}
    share = g.abs().double() / s
    assert_mean(found, g, s * (share * (1 - share)).sqrt())


@pytest.mark.technique("terngrad", check=2)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse"])
def test_the_sum_of_whole_numbers_is_the_mean_of_what_all_sent(workers: int, kind: str) -> None:
    """To the bit where neither the scale nor the number of workers can make a rounding; else to the last place."""
    inputs = [tensor(kind, seed=rank) for rank in range(workers)]
    outcomes = meet(TernGrad(), inputs)
    sent = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None]).double()
    assert len(sent) == workers
    mean = sent.mean(dim=0)
    torch.testing.assert_close(outcomes[0].result.double(), mean, rtol=2**-22, atol=0)
    for x in inputs:
        x.clamp_(-0.5, 0.5)
    inputs[0][0, 0] = 0.5
    exact = meet(TernGrad(clip=0), inputs)
    sent = torch.stack([outcome.sent for outcome in exact if outcome.sent is not None]).double()
    whole = sent.sum(dim=0) / 0.5
    assert torch.equal(whole, whole.round()) and float(whole.abs().max()) <= workers
    if workers in (1, 2, 4, 8):
        assert all(torch.equal(outcome.result.double(), sent.mean(dim=0)) for outcome in exact)


def ternary_bytes(n: int, workers: int) -> tuple[list[int], int]:
    """What each worker sends, and what it receives: the scale, and the sums of all owners."""
    messages: list[list[tuple[str, Tensor]]] = []
    meet(TernGrad(), [tensor("normal", (n,), rank) for rank in range(workers)], payloads=messages)
    assert all([hop for hop, _ in sent] == ["Reduce", "Scatter", "Gather"] for sent in messages)
    up = [sent[0][1].nbytes + sent[1][1].nbytes for sent in messages]
    return up, messages[0][0][1].nbytes + sum(sent[2][1].nbytes for sent in messages)


@pytest.mark.technique("terngrad", check=3)
@pytest.mark.parametrize(
    ("n", "workers", "up", "down"),
    [(24, 1, 6 + 4, 6 + 4), (48, 2, 12 + 4, 18 + 4), (120, 5, 30 + 4, 60 + 4), (13, 3, 6 + 4, 9 + 4)],
)
def test_bytes_up_and_down_by_hand(n: int, workers: int, up: int, down: int) -> None:
    """Two bits a value up; down two, three or four, for 3, 5 or 11 sums. Of 13 values three workers make 24."""
    assert ternary_bytes(n, workers) == ([up] * workers, down)


@pytest.mark.long
@pytest.mark.technique("terngrad", check=3)
@given(eights=st.integers(1, 100), workers=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_two_bits_up_and_the_sums_bits_down(eights: int, workers: int) -> None:
    """Exactly, where workers divide the tensor into parts of whole bytes; where not, parts are filled up."""
    each = math.ceil(math.log2(2 * workers + 1))
    n = 8 * eights * workers
    assert ternary_bytes(n, workers) == ([math.ceil(n / 4) + 4] * workers, math.ceil(n * each / 8) + 4)
    filled = 8 * workers * math.ceil(eights / (8 * workers))
    assert ternary_bytes(eights, workers) == ([filled // 4 + 4] * workers, filled * each // 8 + 4)


@pytest.mark.evidence("terngrad", recording="terngrad.npz")
@pytest.mark.long
def test_terngrad_does_what_graces_does() -> None:
    recorded = fixture("terngrad.npz")
    for k in range(2):
        x, scale = torch.tensor(recorded[f"x_{k}"]), torch.tensor(recorded[f"scale_{k}"])
        found = with_draws(TernGrad(), x, recorded[f"uniform01_{k}"])
        assert torch.equal((found / scale).round().to(torch.int8), torch.tensor(recorded[f"ternary_{k}"]))
        torch.testing.assert_close(found, torch.tensor(recorded[f"decoded_{k}"]), rtol=1e-5, atol=0)


# ---------------------------------------------------------------------------------------------- natural_compression

WORST = [4 / 3 * 2.0**j for j in (-120, -3, 0, 5, 100)]


@pytest.mark.technique("natural_compression", check=1)
@pytest.mark.parametrize("x", [*WORST, 1.0, -0.3, 1.999, -5e-7, 1.17549435e-38, 1.6e38, 3.0, -1.5, 0.0, 2.0**-126])
def test_natural_compression_is_right_in_the_mean_and_loses_at_most_an_eighth(x: float) -> None:
    found = decoded(Natural(), torch.full((100_000,), x)).double()
    x = float(torch.tensor(x))
    if x:
        assert torch.equal(found.abs().log2(), found.abs().log2().round()), "powers of two"
        below = 2.0 ** math.floor(math.log2(abs(x)))
        assert set(found.abs().unique().tolist()) <= {below, 2 * below}
    deviation = float(found.std())
    assert abs(float(found.mean()) - x) <= 4 * deviation / math.sqrt(len(found))
    lost = (found - x).square()
    slack = 4 * float(lost.std()) / math.sqrt(len(found))
    assert float(lost.mean()) <= x * x / 8 + slack
    if x in [float(torch.tensor(w)) for w in WORST]:
        assert float(lost.mean()) == pytest.approx(x * x / 8, abs=slack) and slack < 0.02 * x * x / 8


@pytest.mark.technique("natural_compression", check=2)
@given(n=st.integers(1, 2000))
@settings(max_examples=40, deadline=None)
def test_natural_compression_takes_nine_bits(n: int) -> None:
    x = tensor("normal", (n,))
    assert Natural().encode(x, MEETING).nbytes == Natural().payload_bytes(spec_of(x), 1) == math.ceil(9 * n / 8)


# ---------------------------------------------------------------------------------------------- k levels, rotated


@pytest.mark.technique("suresh_klevel", check=1)
@given(
    kind=st.sampled_from(["normal", "heavy", "sparse", "constant", "zero"]),
    n=st.integers(1, 300),
    step=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_two_levels_are_the_binary_quantisation(kind: str, n: int, step: int) -> None:
    x, meeting = tensor(kind, (n,)), replace(MEETING, step=step)
    low, high = x.min(), x.max()
    up = kernels.uniform(meeting.key(), 0, n) < (x - low) / (high - low).where(high > low, 1)
    torch.testing.assert_close(decoded(KLevel(levels=2), x, step), torch.where(up, high, low), rtol=1e-6, atol=1e-6)


@pytest.mark.technique("suresh_klevel", check=2)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse"])
@pytest.mark.parametrize("k", [2, 3, 16, 256])
def test_k_levels_are_right_in_the_mean(kind: str, k: int) -> None:
    """Two thousand copies of a vector have its extremes, and as many draws."""
    x = tensor(kind, (50,))
    found = decoded(KLevel(levels=k), x.repeat(2000)).view(-1, 50)
    step = (x.max() - x.min()).double() / (k - 1)
    share = (x.double() - x.min()) / step
    share -= share.floor()
    assert_mean(found, x, step * (share * (1 - share)).clamp(min=0).sqrt())


@pytest.mark.technique("suresh_klevel", check=2)
def test_twice_as_many_steps_lose_a_quarter() -> None:
    x = tensor("normal", (20_000,))
    lost = [float((decoded(KLevel(levels=k), x) - x).double().square().sum()) for k in (17, 33, 65, 129)]
    for more, less in pairwise(lost):
        assert more / less == pytest.approx(4, rel=0.1)


@pytest.mark.technique("suresh_klevel", check=3)
@given(k=st.integers(2, 256), n=st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_k_levels_take_their_bits_and_eight_bytes(k: int, n: int) -> None:
    x = tensor("normal", (n,))
    expected = math.ceil(n * math.ceil(math.log2(k)) / 8) + 8
    assert KLevel(levels=k).encode(x, MEETING).nbytes == KLevel(levels=k).payload_bytes(spec_of(x), 1) == expected


@pytest.mark.technique("suresh_rotated", check=1)
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("shape", [(1,), (64,), (24, 20), (120, 101)])
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_without_rounding_the_rotation_gives_the_mean_back(workers: int, shape: tuple[int, ...], kind: str) -> None:
    inputs = [tensor(kind, shape, rank) for rank in range(workers)]
    mean = torch.stack(inputs).double().mean(dim=0)
    for outcome in meet(Rotated(levels=0), inputs, step=workers):
        error = (outcome.result.double() - mean).norm() / mean.norm()
        assert float(error) < 1e-6


def lost(codec: Codec, x: Tensor) -> float:
    return sum(float((decoded(codec, x, step) - x).double().square().sum()) for step in range(50)) / 50


@pytest.mark.technique("suresh_rotated", check=2)
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("factor", [100, 200, 300])
def test_rotated_a_dominant_value_costs_little(n: int, factor: float) -> None:
    """One value that many standard deviations of all others above them: 16 levels over its range are too coarse for
    these; rotated, it is spread over all."""
    x = tensor("normal", (n,), seed=n)
    x[n // 3] = factor
    assert lost(KLevel(levels=16), x) >= 50 * lost(Rotated(levels=16), x)


@pytest.mark.long
@pytest.mark.technique("suresh_rotated", check=3)
@pytest.mark.parametrize(("k", "kind"), [(2, "normal"), (16, "heavy"), (16, "sparse")])
def test_rotated_levels_are_right_in_the_mean(k: int, kind: str) -> None:
    """Over draws and rotations, of two workers' mean."""
    inputs = [tensor(kind, (5, 9), rank) for rank in range(2)]
    found = torch.stack([meet(Rotated(levels=k), inputs, step=step)[0].result for step in range(600)])
    assert_mean(found, torch.stack(inputs).mean(dim=0), found.std(dim=0))


def test_a_single_level_is_refused() -> None:
    with pytest.raises(StrategyError, match="write levels=2"):
        Strategy.parse("suresh_rotated(levels=1)")


# ---------------------------------------------------------------------------------------------- bits


@pytest.mark.long
@given(width=st.integers(1, 20), data=st.data())
@settings(max_examples=100, deadline=None)
def test_numbers_of_any_width_are_packed_without_gaps(width: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=50))
    packed = bits.pack(torch.tensor(numbers, dtype=torch.int64), width)
    assert packed.nbytes == bits.length(len(numbers), width) == math.ceil(len(numbers) * width / 8)
    assert bits.unpack(packed, width, len(numbers)).tolist() == numbers


def test_values_are_cut_at_deviations_and_equal_ones_are_not() -> None:
    assert clipped(torch.full((7,), 0.5), 2.5).tolist() == [0.5] * 7, "their deviation is zero"
    x = torch.tensor([3.0, -3.0, 3.0, -27.0])  # of mean -6 and deviation 12.37
    torch.testing.assert_close(clipped(x, 1.0), torch.tensor([3.0, -3.0, 3.0, -math.sqrt(153)]))
    assert torch.equal(clipped(x, 0.0), x)
    (outcome,) = meet(TernGrad(), [torch.full((7,), 0.5)])
    assert outcome.result.tolist() == [0.5] * 7
