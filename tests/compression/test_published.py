"""Figures that papers and standards publish, reproduced by running the techniques that declare them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from laconic.compression.blocks import Blocks
from laconic.compression.cast import CastBF16, CastFP16
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.dithering import Binary, NaturalDithering
from laconic.compression.eight_bits import CastFP8
from laconic.compression.fixed_point import FixedPoint
from laconic.compression.gradient_differences import EF21
from laconic.compression.level_tables import rounded
from laconic.compression.payload import pack
from laconic.compression.rotated import KLevel
from laconic.compression.signs import ScaledSign, SignSGD
from laconic.compression.stochastic_levels import Natural
from laconic.compression.three_lc import ThreeLC
from laconic.compression.topk import RandK
from laconic.compression.unbiased_sparse import KonecnyRichtarik
from laconic.compression.varlen import VariableLength
from laconic.compression.zipml import both, twice
from laconic.kernels import uniform
from laconic.registry import entries
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.compression.test_momentum import STAGES, adam, train

MEETING = Meeting(0, 1, 0, "x")


def decoded(codec: Codec, x: Tensor, step: int = 0) -> Tensor:
    meeting = replace(MEETING, step=step)
    return codec.decode(codec.encode(x, meeting), x.shape, meeting).double()


def lost(decoded_values: Tensor, x: Tensor) -> float:
    """The squared error as a share of the squared norm."""
    return float((decoded_values.double() - x.double()).square().sum() / x.double().square().sum())


def test_what_a_compressor_does_to_a_tensor_fits_in_one_line() -> None:
    for entry in (entry for entry in entries("compression") if entry.module.startswith("laconic.")):
        assert entry.formula.isprintable() and 0 < len(entry.formula) <= 110, entry.name


# ---------------------------------------------------------------------------------------------- rounding at random


@pytest.mark.evidence("natural_compression")
def test_natural_compression_raises_the_second_moment_to_nine_eighths() -> None:
    """Horváth et al., abstract and Theorem 1: E|C(x)|² is at most 9/8 |x|², which 4/3 of a power of two attains, and 9
    bits stand for 32: 3.56 times less."""
    n = 500_000
    found = decoded(Natural(), torch.full((n,), 4 / 3)).square().mean() / (4 / 3) ** 2
    assert float(found) == pytest.approx(9 / 8, rel=2e-3)
    grid = torch.linspace(1, 2, 65).repeat_interleave(10_000)
    moments = (decoded(Natural(), grid) / grid).square().view(65, -1).mean(dim=1)
    assert float(moments.max()) < 9 / 8 * 1.02 and float(moments[0]) == float(moments[-1]) == 1
    x = tensor("normal", (3200,))
    assert 4 * x.numel() / Natural().encode(x, MEETING).nbytes == pytest.approx(32 / 9)


@pytest.mark.long
@pytest.mark.evidence("natural_dithering")
def test_natural_dithering_loses_what_its_formula_says_at_both_ends() -> None:
    """Horváth et al.: ω = 1/8 + √n·2^(1-s)·min(1, √n·2^(1-s)) for the l2 norm. Many levels: nine equal values, each 4/3
    of a level, lose 1/8. One level: 10,000 equal values lose √n - 1 = 99, where the formula says 100.1."""

    def formula(n: int, s: int) -> float:
        root = math.sqrt(n) * 2.0 ** (1 - s)
        return 1 / 8 + root * min(1.0, root)

    many = NaturalDithering(levels=12, bucket=9)
    x = torch.ones(9 * 50_000)
    assert lost(decoded(many, x), x) == pytest.approx(1 / 8, rel=0.01)
    assert formula(9, 12) == pytest.approx(1 / 8, rel=1e-4)
    x, few = torch.ones(10_000 * 60), NaturalDithering(levels=1, bucket=10_000)
    assert lost(decoded(few, x), x) == pytest.approx(99, rel=0.02)
    assert formula(10_000, 1) == pytest.approx(100.1, rel=1e-3)


def spread(d: int) -> Tensor:
    """A vector of norm 1 with two coordinates, as far apart as that allows."""
    x = torch.zeros(d)
    x[0], x[1] = math.sqrt(0.5), -math.sqrt(0.5)
    return x


@pytest.mark.long
@pytest.mark.evidence("suresh_binary")
def test_one_bit_a_coordinate_loses_half_of_the_norm_for_each() -> None:
    """Suresh et al.: the error of one vector is Σ (max - x)(x - min), exactly, and of the mean of n clients 1/n of it:
    (d - 2)/2n for two opposite coordinates, which makes it Θ(d/n)."""
    d, clients = 20_002, 10
    x = spread(d)
    assert lost(decoded(Binary(), x), x) == pytest.approx((d - 2) / 2, rel=1e-6)
    steps = [lost(meet(Binary(), [x] * clients, step=step)[0].result, x) for step in range(3)]
    assert sum(steps) / len(steps) == pytest.approx((d - 2) / (2 * clients), rel=0.02)


@pytest.mark.evidence("suresh_klevel")
@pytest.mark.parametrize("k", [2, 4, 16, 256])
def test_k_levels_cut_the_error_by_the_square_of_their_steps(k: int) -> None:
    """Suresh et al.: k levels divide the error of two by (k - 1)²; the same vector, whose zeros are between two."""
    x = spread(1002)
    assert lost(decoded(KLevel(levels=k), x), x) == pytest.approx(500 / (k - 1) ** 2, rel=1e-4)


@pytest.mark.evidence("suresh_varlen")
@pytest.mark.parametrize("kind", ["normal", "heavy", "constant"])
def test_root_n_levels_take_less_than_three_bits_a_coordinate(kind: str) -> None:
    """Suresh et al., variable-length coding with k = √n + 1: at most n(2 + log2((k-1)²/2n + 5/4)) + k·log2((n+k)e/k) +
    O(1) bits: 2.81 a coordinate, and 0.03 of them for the histogram of n = 65,536."""
    n = 1 << 16
    made, x = VariableLength(), tensor(kind, (n,))
    assert made.count(n) == 257
    message = made.encode(x, MEETING)
    assert 8 * message.nbytes / n < 2.81 + 0.04
    assert lost(made.decode(message, x.shape, MEETING), x) <= 0.5


@pytest.mark.long
@pytest.mark.evidence("konecny_richtarik")
def test_one_bit_a_coordinate_buys_an_error_of_r_over_n() -> None:
    """Konečný and Richtárik, abstract: a single bit a coordinate makes an error of O(r/n), with floats of r bits. By
    their formulas: a seed and d/32 values take d + r + 64 bits, and lose (d/k - 1)|x - µ|² = 31|x - µ|²."""
    d, nodes = 32_000, 8
    made = KonecnyRichtarik(ratio=1 / 32, support="fixed", protocol="seed", centre="mean")
    x = torch.ones(d)
    x[::2] = -1
    assert 8 * made.encode(x, MEETING).nbytes == d + 32 + 64
    assert lost(decoded(made, x), x) == pytest.approx(31, rel=1e-6)
    steps = [lost(meet(made, [x] * nodes, step=step)[0].result, x) for step in range(6)]
    assert sum(steps) / len(steps) == pytest.approx(31 / nodes, rel=0.03)


@pytest.mark.evidence("randk")
@pytest.mark.parametrize("k", [1, 10, 50])
def test_random_coordinates_lose_n_over_k_less_one(k: int) -> None:
    """Stich et al. and Konečný and Richtárik: E|C(x) - x|² is (n/k - 1)|x|² where values are scaled by n/k, and (1 -
    k/n)|x|² where they are not. Of equal magnitudes every draw loses just that: 99 at one of a hundred."""
    x = tensor("normal", (100,)).sign()
    for scaled, expected in ((True, 100 / k - 1), (False, 1 - k / 100)):
        (outcome,) = meet(RandK(ratio=k / 100, scaled=scaled), [x])
        assert lost(outcome.result, x) == pytest.approx(expected, rel=1e-5)


@pytest.mark.evidence("zipml")
def test_a_second_sample_costs_one_bit() -> None:
    """Zhang et al.: two roundings of a value take one bit more than one of them, as they have two neighbours at most
    between them: of eight levels, four bits."""
    table, x = torch.linspace(-1, 1, 8), tensor("normal", (20_000,)).clamp(-1, 1)
    first, second, order = (uniform(key, 0, x.numel()) for key in (1, 2, 3))
    decoded_values = twice(x, table, first, second)
    assert bits.width(len(table) - 1) == 3 and bits.width(int(decoded_values.max())) == 4
    one, other = both(decoded_values, table, order)
    pair = torch.stack([table[rounded(x, table, draws)] for draws in (first, second)]).sort(dim=0).values
    assert torch.equal(torch.stack([one, other]).sort(dim=0).values, pair)


# ---------------------------------------------------------------------------------------------- formats


@pytest.mark.evidence("gupta_fixed_point")
def test_sixteen_bits_with_fourteen_behind_the_point() -> None:
    """Gupta et al.: <2, 14> has steps of ε = 2^-14 in [-2, 2 - ε]; a tenth of ε becomes ε in a tenth of all draws when
    rounded at random, and never when rounded to the nearest."""
    step, made = 2.0**-14, FixedPoint(fraction=14)
    x = torch.cat([torch.tensor([5.0, -5.0, 1.0]), torch.full((100_000,), 0.1 * step)])
    (random,), (nearest,) = meet(made, [x]), meet(replace(made, rounding="nearest"), [x])
    assert random.result[:3].tolist() == [2 - step, -2.0, 1.0]
    assert set(random.result[3:].unique().tolist()) == {0.0, step}
    assert float((random.result[3:] > 0).float().mean()) == pytest.approx(0.1, abs=0.004)
    assert not nearest.result[3:].any()


def patterns(codec: Codec, values: list[float]) -> list[str]:
    """What is sent, in hexadecimal."""
    payload = codec.encode(torch.tensor(values), MEETING)
    return [f"{n & 0xFFFF:04X}" for n in payload.view(torch.int16).tolist()]


def worst(codec: Codec) -> float:
    """Relative error of values between 1 and 2."""
    x = 1 + torch.arange(1 << 16) / (1 << 16)
    return float(((decoded(codec, x) - x) / x).abs().max())


@pytest.mark.evidence("cast_fp16")
def test_half_precision_is_ieees() -> None:
    """IEEE 754 binary16: 65,504 is the largest, 2^-14 = 6.1e-5 the least normal and 2^-24 = 6e-8 the least number, and
    the relative error is at most 2^-11."""
    values = [65504.0, 1.0, 2.0**-14, 2.0**-24, -2.0, 65520.0, 2.0**-26]
    assert patterns(CastFP16(), values) == ["7BFF", "3C00", "0400", "0001", "C000", "7C00", "0000"]
    assert decoded(CastFP16(), torch.tensor(values)).tolist() == [*values[:5], math.inf, 0.0]
    assert 0.99 * 2**-11 < worst(CastFP16()) <= 2**-11


@pytest.mark.evidence("cast_bf16")
def test_brain_floats_are_the_upper_half_of_float32() -> None:
    """The constants of CUDA's bfloat16: 7F7F is the largest (3.39e38), 0001 the least, 3F80 one, 7F80 infinity; and the
    relative error of 8 bits is at most 2^-8."""
    largest = float(torch.tensor([0x7F7F0000]).to(torch.int32).view(torch.float32))
    assert largest == pytest.approx(3.39e38, rel=1e-3)
    values = [largest, 1.0, 2.0**-133, 2.0**-126, math.inf, 3.4e38]
    assert patterns(CastBF16(), values) == ["7F7F", "3F80", "0001", "0080", "7F80", "7F80"]
    assert 0.99 * 2**-8 < worst(CastBF16()) <= 2**-8


@pytest.mark.evidence("cast_fp8")
@pytest.mark.parametrize(
    ("format", "largest", "normal", "least", "codes", "error"),
    [
        ("e4m3", 448.0, 2.0**-6, 2.0**-9, [0x7E, 0x08, 0x01, 0x38, 0x39], 2**-4),
        ("e5m2", 57344.0, 2.0**-14, 2.0**-16, [0x7B, 0x04, 0x01, 0x3C, 0x3D], 2**-3),
    ],
)
def test_eight_bit_floats_are_the_published_ones(
    format: str, largest: float, normal: float, least: float, codes: list[int], error: float
) -> None:
    """Micikevicius et al., FP8 formats: E4M3 up to 448, from 2^-6 on normal, down to 2^-9; E5M2 up to 57,344, 2^-14 and
    2^-16. Half a step is 2^-4 and 2^-3 of a value."""
    x = torch.tensor([largest, normal, least, 1.0, 1 + 2 * error])
    made = CastFP8(format=format)
    assert made.encode(x, MEETING)[:5].tolist() == codes
    torch.testing.assert_close(decoded(made, x).float(), x, rtol=1e-6, atol=0)
    y = torch.cat([torch.tensor([largest]), 1 + torch.arange(1, 4096) / 4096])
    off = float(((decoded(made, y) - y) / y).abs().max())
    assert 0.85 * error < off <= error


@pytest.mark.evidence("mx_block_codecs")
def test_microscaling_codes_are_the_standards() -> None:
    """OCP MX v1.0: E2M1 has 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; E4M3 ends at 448 with S.1111.111 for no
    number, E5M2 at 57,344 before infinity; a scale of E8M0 is 2^(code - 127), and 255 is no number. 32 values share
    one: 8.25 and 4.25 bits each; NVFP4 has blocks of 16: 4.5 bits."""

    def decoded_values(format: str, codes: list[int], scale: int) -> list[float]:
        made = Blocks(format=format)
        width = 4 if format == "mxfp4" else 8
        filled = torch.tensor(codes + [0] * (32 - len(codes)))
        payload = pack(bits.pack(filled, width), torch.tensor([scale], dtype=torch.uint8))
        found: list[float] = made.decode(payload, torch.Size([32]), MEETING)[: len(codes)].tolist()
        return found

    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert decoded_values("mxfp4", list(range(16)), 127) == positive + [-v for v in positive]
    assert decoded_values("mxfp8", [0x7E, 0x08, 0x01, 0x38, 0xFE], 127) == [448.0, 2.0**-6, 2.0**-9, 1.0, -448.0]
    assert all(math.isnan(v) for v in decoded_values("mxfp8", [0x7F, 0xFF], 127))
    assert decoded_values("mxfp8_e5m2", [0x7B, 0x04, 0x01, 0x7C], 127) == [57344.0, 2.0**-14, 2.0**-16, math.inf]
    assert [decoded_values("mxfp4", [2], scale)[0] for scale in (1, 126, 254)] == [2.0**-126, 0.5, 2.0**127]
    assert math.isnan(decoded_values("mxfp4", [2], 255)[0])
    x = tensor("normal", (1 << 15,))
    taken = {
        form: 8 * Blocks(format=form).encode(x, MEETING).nbytes / x.numel() for form in ("mxfp8", "mxfp4", "nvfp4")
    }
    assert taken["mxfp8"] == 8.25 and taken["mxfp4"] == 4.25 and taken["nvfp4"] == 4.5 + 32 / x.numel()


@pytest.mark.evidence("three_lc")
def test_zeros_are_compressed_280_times() -> None:
    """Lim et al.: five ternary values to a byte are 1.6 bits each, and a byte stands for up to 70 zeros, 280 times less
    than as floats (without the scale, of which there is one a tensor)."""
    n, scale = 70_000, 4
    zeros = ThreeLC().encode(torch.zeros(n), MEETING)
    assert 4 * n / (zeros.nbytes - scale) == 280
    x = tensor("normal", (n,))
    assert 8 * (ThreeLC(runs=False).encode(x, MEETING).nbytes - scale) / n == pytest.approx(1.6)


# ---------------------------------------------------------------------------------------------- signs and memories


@pytest.mark.long
@pytest.mark.evidence("sign_sgd")
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
def test_signs_alone_stay_on_a_line(epsilon: float) -> None:
    """Karimireddy et al., counter-example: on ε|x + y| + |x - y| from (1, 1), whatever the steps, signSGD keeps x + y
    = 2, and the value never falls below that of the start, 2ε; the minimum is 0."""
    x, sums, values = torch.ones(2, dtype=torch.float64), [], []
    for step in range(300):
        along, across = (1.0 if v >= 0 else -1.0 for v in (x.sum(), x[0] - x[1]))
        gradient = torch.tensor([epsilon * along + across, epsilon * along - across], dtype=torch.float64)
        (outcome,) = meet(SignSGD(), [gradient], step=step)
        x = x - 0.1 / math.sqrt(step + 1) * outcome.result
        sums.append(float(x.sum()))
        values.append(epsilon * abs(float(x.sum())) + abs(float(x[0] - x[1])))
    assert sums == pytest.approx([2.0] * 300, abs=1e-9)
    assert min(values) > 2 * epsilon - 1e-9


@pytest.mark.evidence("scaled_sign")
@pytest.mark.parametrize(
    ("values", "left"),
    [([3.0, 4.0], 1 / 50), ([1.0, 0.0, 0.0, 0.0], 3 / 4), ([2.0, -2.0, 2.0], 0.0), ([1, 2, 3], 1 / 7)],
)
def test_scaled_signs_lose_one_less_the_density(values: list[float], left: float) -> None:
    """Karimireddy et al.: |C(v) - v|² is (1 - |v|₁²/(d|v|₂²))|v|², an equality: 1 - 49/50 of (3, 4)."""
    x = torch.tensor(values)
    assert lost(decoded(ScaledSign(), x), x) == pytest.approx(left, abs=1e-6)


VECTORS = [torch.tensor([-3.0, 2.0, 2.0], dtype=torch.float64).roll(k) for k in range(3)]
"""Of f = (a·x)² + |x|²/4 at three workers: the largest coordinate of each gradient at (1, 1, 1) points away from 0."""


def descended(text: str, rate: float, steps: int) -> list[Tensor]:
    """The point after every step."""
    made, path = compressor(text), [torch.ones(3, dtype=torch.float64)]
    states = [made.init(spec_of(path[0])) for _ in VECTORS]
    for step in range(steps):
        x = path[-1]
        outcomes = meet(made, [2 * (a @ x) * a + x / 2 for a in VECTORS], states, step, rate)
        states = [outcome.state for outcome in outcomes]
        path.append(x - rate * outcomes[0].result)
    return path


def assert_diverges(rate: float) -> None:
    """Beznosikov et al., an example: the largest coordinate alone multiplies the point by 1 + 11/6 of the rate."""
    for x, expected in zip(
        descended("topk(0.3)", rate, 20), [(1 + 11 * rate / 6) ** k for k in range(21)], strict=True
    ):
        torch.testing.assert_close(x, torch.full_like(x, expected), rtol=1e-5, atol=0)


@pytest.mark.long
@pytest.mark.evidence("ef21")
def test_ef21_converges_where_the_largest_coordinate_alone_diverges() -> None:
    """Beznosikov et al.'s example, on which topk alone grows by 1 + 11γ/6 a step; EF21 goes to the minimum, at the
    largest rate of its theory (Richtárik et al.): 1/(L + L̃·√(β/θ)), with a contraction of 1/3."""
    hessians = [2 * torch.outer(a, a) + torch.eye(3, dtype=torch.float64) / 2 for a in VECTORS]
    smooth, rough = (float(torch.linalg.eigvalsh(h)[-1]) for h in (torch.stack(hessians).mean(0), hessians[0]))
    rate = EF21.step_size(1 / 3, smooth, rough)
    assert_diverges(rate)
    path = descended("topk(0.3)+ef21", rate, 900)
    assert float(path[900].norm()) < 0.6 * float(path[450].norm()) < 0.6 * math.sqrt(3)


@pytest.mark.long
@pytest.mark.evidence("mem_sgd")
def test_mem_sgd_converges_where_the_largest_coordinate_alone_diverges() -> None:
    """Beznosikov et al.'s example, on which topk alone grows by 1 + 11γ/6 a step; with a memory the rate is linear, as
    all workers share the minimum."""
    rate = 0.01
    assert_diverges(rate)
    path = descended("mem_sgd", rate, 900)
    norms = [float(path[k].norm()) for k in (300, 600, 900)]
    assert norms[0] < 1 and norms[1] < 0.3 * norms[0] and norms[2] < 0.3 * norms[1]


@pytest.mark.evidence("one_bit_adam")
def test_one_bit_is_ninety_seven_percent_less() -> None:
    """Tang et al.: after the warm-up, one bit reduces communication by 97 % against float32."""
    _, dense, _, _ = train("bsp", 3, 4, adam)
    _, sent, _, _ = train(STAGES.format(3), 5, 4, adam)
    assert sent[:3] == dense, "the warm-up is Adam's"
    assert round(100 * (1 - sent[-1] / dense[0])) == 97


@pytest.mark.evidence("dgc")
def test_dgcs_warm_up_goes_through_the_published_sparsities() -> None:
    """Lin et al.: 75, 93.75, 98.4375, 99.6 and then 99.9 % of the gradient are left out, over four epochs."""
    made, x, epoch = compressor("dgc(0.001, warmup=400)"), tensor("normal", (64_000,)), 100
    found = []
    for step in range(0, 5 * epoch, epoch):
        messages: list[list[tuple[str, Tensor]]] = []
        (outcome,) = meet(made, [x], step=step, payloads=messages)
        decoded_values = int((outcome.result != 0).sum())
        assert messages[0][0][1].nbytes == 6 * decoded_values
        found.append(100 * (1 - decoded_values / x.numel()))
    assert found == pytest.approx([75, 93.75, 98.4375, 99.609375, 99.9])
