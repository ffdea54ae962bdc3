"""3LC: bytes that decode to what was sent, errors within half a step on both hops, and training at a fortieth."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.codes import trits
from laconic.compression.three_lc import ThreeLC
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.sync import digits
from tests.sync.test_large_batch import Standardised

MEET = Meeting(0, 1, 0, "x")
LAST = math.nextafter(2, 1)
SPARSITIES = st.one_of(st.sampled_from([1.0, 1.5, 1.75, 1.9, 2 - 1e-7, LAST]), st.floats(1, 2, exclude_max=True))
DIGITS = st.lists(st.tuples(st.sampled_from([-1, 0, 0, 0, 1]), st.integers(1, 200)), min_size=1, max_size=12)


def spread(runs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor([digit for digit, count in runs for _ in range(count)], dtype=torch.int8)


def by_definition(decoded: Tensor) -> bytes:
    """A digit from each of five stretches to a byte, and 2 to 14 bytes of zeros in one, as the paper writes it."""
    digits = [int(q) + 1 for q in decoded] + [1] * (-len(decoded) % 5)
    stretch = len(digits) // 5
    quartic = [int("".join(map(str, digits[j::stretch])), base=3) for j in range(stretch)]
    short: list[int] = []
    for byte, run in groupby(quartic):
        count = len(list(run))
        while byte == 121 and count >= 2:
            short.append(243 + min(count, 14) - 2)
            count -= min(count, 14)
        short += [byte] * count
    return bytes(short)


@pytest.mark.long
@given(DIGITS)
@settings(max_examples=150, deadline=None)
@pytest.mark.technique("three_lc", check=1)
def test_bytes_are_the_papers_and_decode_to_the_same_digits(runs: list[tuple[int, int]]) -> None:
    decoded = spread(runs)
    short = trits.shorten(trits.pack(decoded))
    assert bytes(short.tolist()) == by_definition(decoded)
    assert torch.equal(trits.unpack(trits.lengthen(short), len(decoded)), decoded)


@pytest.mark.long
@given(DIGITS, st.floats(1e-30, 1e30), SPARSITIES)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("three_lc", check=1)
def test_a_message_sends_its_digits_times_the_largest(runs: list[tuple[int, int]], scale: float, s: float) -> None:
    """Values of one magnitude or none all survive, whatever the sparsity."""
    q = spread(runs)
    made, x = ThreeLC(sparsity=s), scale * q.float()
    payload = made.encode(x, MEET)
    assert len(payload) == 4 + len(by_definition(q))
    assert torch.equal(made.decode(payload, x.shape, MEET), q * (s * x.abs().max()))


@pytest.mark.technique("three_lc", check=1)
def test_seventy_zeros_are_one_byte() -> None:
    assert len(trits.shorten(trits.pack(torch.zeros(70)))) == 1
    assert len(ThreeLC().encode(torch.zeros(70), MEET)) == 4 + 1
    assert len(ThreeLC().encode(torch.zeros(71), MEET)) == 4 + 2


@given(st.integers(1, 400), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("three_lc", check=1)
def test_without_runs_of_zeros_five_values_take_a_byte(numel: int, seed: int) -> None:
    """Values between half the largest and the largest: all are sent. Also where runs are not looked for."""
    draw = torch.Generator().manual_seed(seed)
    x = (0.5 + 0.5 * torch.rand(numel, generator=draw)) * torch.randn(numel, generator=draw).sign()
    x[seed % numel] = 1.0
    assert len(ThreeLC().encode(x, MEET)) == math.ceil(numel / 5) + 4
    assert len(ThreeLC(runs=False).encode(torch.zeros(numel), MEET)) == math.ceil(numel / 5) + 4


@pytest.mark.long
@given(SPARSITIES, st.sampled_from(["normal", "heavy", "sparse", "constant"]), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("three_lc", check=2)
def test_the_memory_is_within_half_a_step_and_something_is_sent(s: float, kind: str, seed: int) -> None:
    """After every step, at all sparsities, of whatever there is to send; and what was sent and the memory are what came
    in."""
    made = compressor(f"three_lc({s!r})+ef")
    error = torch.zeros(12, 11)
    decoded, came = torch.zeros(2, 12, 11, dtype=torch.float64)
    for step in range(8):
        x, handed = tensor(kind, (12, 11), seed + step), list[list[tuple[str, Tensor]]]()
        wanted = x + error
        (outcome,) = meet(made, [x], [{"error": error}], step, payloads=handed)
        ((_, payload),) = handed[0]
        most, error = float(payload[:4].clone().view(torch.float32)), outcome.state["error"]
        assert float(error.abs().max()) <= most / 2 * (1 + 1e-6)
        assert bool(outcome.result.any()) == bool(wanted.any())
        decoded, came = decoded + outcome.result, came + x
        torch.testing.assert_close(decoded + error, came, rtol=0, atol=1e-6 * float(came.abs().max() + most))


@pytest.mark.long
@given(SPARSITIES, st.integers(1, 5), st.sampled_from(["normal", "heavy", "sparse"]), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("three_lc", check=2)
def test_both_hops_keep_what_they_do_not_send(s: float, size: int, kind: str, seed: int) -> None:
    """Workers of what they push, owners of what they answer: each hop's messages and its memory are what came to it."""
    made = compressor(f"three_lc({s!r}, runs=false)+two_hop(memory=true)+ef")
    x = tensor(kind, (24, 20))
    states = [made.init(spec_of(x)) for _ in range(size)]
    came, pushed = torch.zeros(2, size, *x.shape, dtype=torch.float64)
    answered = torch.zeros(x.shape, dtype=torch.float64)
    for step in range(10):
        inputs = [tensor(kind, (24, 20), seed + 10 * step + rank) for rank in range(size)]
        handed: list[list[tuple[str, Tensor]]] = []
        outcomes = meet(made, inputs, states, step, payloads=handed)
        states = [outcome.state for outcome in outcomes]
        came += torch.stack(inputs)
        pushed += torch.stack([o.sent for o in outcomes if o.sent is not None])
        answered += outcomes[0].result
        error = torch.stack([state["error"] for state in states])
        owner = torch.stack([state["inner.owner"] for state in states])
        near = 2e-6 * (1 + step) * float(came.abs().max())
        torch.testing.assert_close(pushed + error, came, rtol=0, atol=near)
        torch.testing.assert_close(answered + owner.sum(dim=0), pushed.mean(dim=0), rtol=0, atol=near)
        for rank, ((_, pushes), (_, answer)) in enumerate(handed):
            steps = [float(part[:4].clone().view(torch.float32)) for part in (*pushes, answer)]
            assert float(error[rank].abs().max()) <= max(steps[:-1]) / 2 * (1 + 1e-6)
            assert float(owner[rank].abs().max()) <= steps[-1] / 2 * (1 + 1e-6)


def test_two_hops_do_not_take_messages_of_any_length() -> None:
    with pytest.raises(StrategyError, match="known length"):
        compressor("three_lc+two_hop")


@pytest.mark.technique("three_lc", check=3)
@pytest.mark.long
def test_it_trains_as_well_with_a_twentieth_of_the_bytes() -> None:
    def mean(strategy: str) -> tuple[float, float]:
        runs = [digits.trained(strategy, 120, 16, digits.sgd(0.3), seed=seed, build=Standardised) for seed in range(2)]
        return sum(run.accuracy for run in runs) / 2, max(run.sent_bytes for run in runs)

    (bsp, dense), (low, sent) = mean("bsp"), mean("three_lc(1.75)+ef")
    assert bsp > 95
    assert low >= bsp - 1
    assert dense >= 20 * sent


def test_tensors_of_fewer_elements_than_the_least_go_dense() -> None:
    assert [ThreeLC().accepts(spec_of(torch.zeros(n))) for n in (63, 64, 65)] == [False, True, True]
    assert not ThreeLC().accepts(spec_of(torch.zeros(64, dtype=torch.int64)))
