"""One bit a coordinate: 1-bit SGD, signSGD with majority vote, EF-SignSGD, and the memory that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic import registry
from laconic.compression.codes import bits
from laconic.compression.error_feedback import Remembering
from laconic.compression.none import Identity
from laconic.compression.signs import OneBit, ScaledSign, SignSGD
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.data import fixture
from tests.sync import digits
from tests.sync.rounds import simulated

MEETING = Meeting(0, 1, 0, "x")
SHAPES = st.sampled_from([(1,), (7,), (200,), (9, 1), (1, 9), (24, 20), (33, 7), (6, 5, 3, 2), (120, 101)])
KINDS = st.sampled_from(["normal", "heavy", "sparse", "constant", "zero"])


def near(found: Tensor, recorded: Any) -> None:
    expected = torch.tensor(recorded)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- one_bit_sgd


@pytest.mark.long
@pytest.mark.technique("one_bit_sgd", check=1)
@given(shape=SHAPES, kind=KINDS, seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_pair_of_a_column_keeps_its_sum_and_the_memory_the_rest(shape: Any, kind: str, seed: int) -> None:
    """In the second step, so that there is a memory already: what is kept is the difference, to the bit, and with what
    was sent it makes what came in."""
    made = compressor("one_bit+ef")
    first, second = tensor(kind, shape, seed), tensor(kind, shape, seed + 100)
    (before,) = meet(made, [first])
    wanted = second + before.state["error"]
    (after,) = meet(made, [second], [{"error": before.state["error"].clone()}], step=1)
    error, decoded = after.state["error"], after.result
    assert torch.equal(error, wanted - decoded)
    ulp = torch.finfo(torch.float32).eps * float(wanted.abs().max())
    assert float((decoded.double() + error.double() - wanted.double()).abs().max()) <= ulp
    columns = wanted.reshape(-1, OneBit().columns(wanted.shape)).double()
    sent = decoded.reshape(columns.shape).double()
    slack = 1e-6 * columns.abs().sum(dim=0) + 1e-12
    assert bool(((sent.sum(dim=0) - columns.sum(dim=0)).abs() <= slack).all())
    pairs = [column.unique().numel() for column in sent.T]
    assert max(pairs) <= 2, "two values a column"


@pytest.mark.technique("one_bit_sgd", check=2)
@given(shape=SHAPES, kind=KINDS)
@settings(max_examples=30, deadline=None)
def test_a_bit_a_value_and_eight_bytes_a_column(shape: Any, kind: str) -> None:
    x = tensor(kind, shape)
    columns = x[0].numel() if x.ndim > 1 else 1
    expected = -(-x.numel() // 8) + 8 * columns
    assert OneBit().encode(x, MEETING).nbytes == OneBit().payload_bytes(spec_of(x), 1) == expected
    messages: list[list[tuple[str, Tensor]]] = []
    meet(compressor("one_bit_sgd"), [x], payloads=messages)
    assert [(hop, sent.nbytes) for hop, sent in messages[0]] == [("Scatter", expected), ("Gather", expected)]


@pytest.mark.technique("one_bit_sgd", check=2)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("shape", [(24, 20), (8, 4), (16, 3, 4), (32, 64)])
def test_stripes_of_all_owners_are_as_long_as_one_message(workers: int, shape: tuple[int, ...]) -> None:
    """Up, what a worker sends to all owners; down, what all owners send to it. (Where workers do not divide columns,
    stripes are filled up.)"""
    inputs = [tensor("normal", shape, seed) for seed in range(workers)]
    messages: list[list[tuple[str, Tensor]]] = []
    meet(compressor("one_bit_sgd"), inputs, payloads=messages)
    expected = -(-inputs[0].numel() // 8) + 8 * inputs[0][0].numel()
    assert [sent[0][1].nbytes for sent in messages] == [expected] * workers
    assert sum(sent[1][1].nbytes for sent in messages) == expected


@pytest.mark.technique("one_bit_sgd", check=3)
@pytest.mark.long
def test_one_bit_with_memory_trains_like_bsp_and_without_does_not() -> None:
    """Final losses of two seeds; without memory they are about twice as large."""

    def losses(strategy: str, seeds: int) -> list[float]:
        return [digits.trained(strategy, 100, 32, digits.sgd(0.5), seed=seed).loss for seed in range(seeds)]

    full = losses("bsp", 2)
    assert sum(losses("one_bit_sgd", 2)) <= 1.05 * sum(full)
    assert losses("bsp / one_bit+two_hop", 1)[0] > 1.3 * full[0]


@pytest.mark.evidence("one_bit_sgd", recording="one_bit_sgd.npz")
def test_one_bit_sgd_does_what_graces_does() -> None:
    """GRACE's numbers: one pair for a vector, the memory after each of five steps; the second hop of one worker sends
    the same two values again."""
    recorded = fixture("one_bit_sgd.npz")
    made = compressor("one_bit_sgd")
    codec = OneBit()
    state = made.init(spec_of(torch.tensor(recorded["grad"][0])))
    for step, grad in enumerate(recorded["grad"]):
        x = torch.tensor(grad)
        payload = codec.encode(x + state["error"], MEETING)
        assert torch.equal(bits.unpack(payload[:25], 1, 200), torch.tensor(recorded["bit"][step]))
        near(payload[25:].clone().view(torch.float32), [recorded["low"][step], recorded["high"][step]])
        (outcome,) = meet(made, [x], [state], step)
        state = outcome.state
        near(outcome.result, recorded["decoded"][step])
        near(state["error"], recorded["error"][step])


# ---------------------------------------------------------------------------------------------- sign_sgd


@pytest.mark.long
@pytest.mark.technique("sign_sgd", check=1)
@given(shape=SHAPES, kind=KINDS, workers=st.sampled_from([1, 3, 5, 7]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_direction_is_the_sign_of_the_majority(shape: Any, kind: str, workers: int, seed: int) -> None:
    inputs = [tensor(kind, shape, seed + rank) * (-1) ** rank for rank in range(workers)]
    votes = sum((torch.where(x >= 0, 1, -1) for x in inputs), torch.zeros(shape, dtype=torch.int64))
    outcomes = meet(SignSGD(), inputs)
    assert all(torch.equal(outcome.result, votes.sign().float()) for outcome in outcomes)


@pytest.mark.parametrize("workers", [2, 4])
def test_ties_and_zeros_count_as_positive(workers: int) -> None:
    inputs = [torch.tensor([1.0, -1.0, 0.0, -0.0]) * (-1) ** rank for rank in range(workers)]
    assert meet(SignSGD(), inputs)[0].result.tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.long
@pytest.mark.technique("sign_sgd", check=2)
@given(
    factor=st.floats(1e-30, 1e30),
    chosen=st.integers(0, 3),
    workers=st.integers(1, 4),
    kind=st.sampled_from(["normal", "sparse"]),
)
@settings(max_examples=60, deadline=None)
def test_magnitudes_do_not_count(factor: float, chosen: int, workers: int, kind: str) -> None:
    inputs = [tensor(kind, seed=rank) for rank in range(workers)]
    scaled = [x * factor if rank == chosen % workers else x for rank, x in enumerate(inputs)]
    before, after = meet(SignSGD(), inputs), meet(SignSGD(), scaled)
    assert all(torch.equal(a.result, b.result) for a, b in zip(before, after, strict=True))


def sign_bytes(n: int, workers: int) -> tuple[list[int], int]:
    """What each worker sends, and what it receives from all owners."""
    messages: list[list[tuple[str, Tensor]]] = []
    meet(SignSGD(), [tensor("normal", (n,), rank) for rank in range(workers)], payloads=messages)
    assert all([hop for hop, _ in sent] == ["Scatter", "Gather"] for sent in messages)
    return [sent[0][1].nbytes for sent in messages], sum(sent[1][1].nbytes for sent in messages)


@pytest.mark.long
@pytest.mark.technique("sign_sgd", check=3)
@given(eights=st.integers(1, 200), rest=st.integers(0, 7), workers=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_a_bit_a_value_in_each_direction(eights: int, rest: int, workers: int) -> None:
    """Exactly, where workers divide the bytes; where they do not, parts of whole bytes are filled up."""
    n = 8 * eights * workers - rest
    assert sign_bytes(n, workers) == ([-(-n // 8)] * workers, -(-n // 8))
    up, down = sign_bytes(eights, workers)
    assert set(up) == {down} == {workers * -(-eights // (8 * workers))}


# ---------------------------------------------------------------------------------------------- ef_signsgd


@pytest.mark.technique("ef_signsgd", check=1)
@given(shape=SHAPES, kind=st.sampled_from(["normal", "heavy", "sparse", "constant"]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_scaled_signs_lose_exactly_what_the_equality_says(shape: Any, kind: str, seed: int) -> None:
    p = tensor(kind, shape, seed)
    delta = ScaledSign().decode(ScaledSign().encode(p, MEETING), p.shape, MEETING).double()
    p = p.double()
    whole = p.square().sum()
    expected = whole - p.abs().sum().square() / p.numel()
    assert float((delta - p).square().sum()) == pytest.approx(float(expected), rel=1e-5, abs=1e-6 * float(whole))


def descended(strategy: str) -> tuple[Tensor, float]:
    """The ends of x1 + x2, over all steps, and of f, from (1, 1), by the subgradient that takes the sign of 0 for 1."""

    def sign(v: Tensor) -> float:
        return 1.0 if v.item() >= 0 else -1.0

    def body() -> tuple[Tensor, float]:
        model = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.float64))])
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        x, sums = model[0], []
        for step in range(2000):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1) ** 0.5
            (0.5 * sign(x[0] + x[1]) * (x[0] + x[1]) + sign(x[0] - x[1]) * (x[0] - x[1])).backward()
            optimizer.step()
            optimizer.zero_grad()
            sums.append((x[0] + x[1]).item())
        return torch.tensor(sums), (0.5 * (x[0] + x[1]).abs() + (x[0] - x[1]).abs()).item()

    found: tuple[Tensor, float] = laconic.simulate(body, 1).results[0]
    return found


@pytest.mark.long
@pytest.mark.technique("ef_signsgd", check=2)
def test_signs_alone_never_leave_a_line_and_with_memory_they_do() -> None:
    stuck, _ = descended("sign_sgd")
    torch.testing.assert_close(stuck, torch.full_like(stuck, 2), rtol=0, atol=1e-6)
    _, value = descended("ef_signsgd")
    assert value < 1e-2


@pytest.mark.long
@pytest.mark.technique("ef_signsgd", check=3)
@pytest.mark.parametrize("workers", [1, 3])
def test_parameters_less_the_memory_are_plain_sgds(workers: int) -> None:
    """Whatever the learning rate does meanwhile: it is inside the memory. (Means of several workers are float32.)"""

    def body() -> tuple[Tensor, Tensor, Tensor]:
        model = nn.Linear(12, 5, bias=False, dtype=torch.float64)
        nn.init.ones_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        _, optimizer = laconic.distribute(model, optimizer, "ef_signsgd")
        plain = torch.zeros(5, 12, dtype=torch.float64)
        for step in range(40):
            rate = 0.3 / (step + 1) if step < 20 else 0.05
            optimizer.param_groups[0]["lr"] = rate
            draw = torch.Generator().manual_seed(100 * laconic.rank() + step)
            gradient = torch.randn(5, 12, generator=draw, dtype=torch.float64)
            (model.weight * gradient).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            plain += rate * gradient
        error = optimizer.session.partitions[0].tiers[0].memory["weight"]["error"]
        return model.weight.detach().clone() - 1, error, plain

    results = laconic.simulate(body, workers).results
    moved = results[0][0]
    error, plain = (torch.stack([r[k] for r in results]).mean(dim=0) for k in (1, 2))
    assert float(error.abs().max()) > 1e-3
    torch.testing.assert_close(moved - error, -plain, rtol=0, atol=1e-12 if workers == 1 else 1e-6)


@pytest.mark.evidence("ef_signsgd", recording="ef_signsgd.npz")
def test_ef_signsgd_does_what_graces_does() -> None:
    """GRACE's numbers with the memory empty at first: the change of parameters and the memory after each step."""
    recorded = fixture("ef_signsgd.npz")
    made, rate = compressor("ef_signsgd"), float(recorded["lr"])
    for k in range(2):
        grads = torch.tensor(recorded[f"grad_{k}"])
        state = made.init(spec_of(grads[0]))
        for step, x in enumerate(grads):
            messages: list[list[tuple[str, Tensor]]] = []
            (outcome,) = meet(made, [x], [state], step, rate, payloads=messages)
            state = outcome.state
            near(messages[0][0][1][-4:].clone().view(torch.float32)[0], recorded[f"scale_{k}"][step])
            near(rate * outcome.result, recorded[f"delta_{k}"][step])
            near(state["error"], recorded[f"error_{k}"][step])


# ---------------------------------------------------------------------------------------------- error_feedback


@pytest.mark.technique("error_feedback", check=2)
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_memory_around_the_identity_stays_empty(workers: int) -> None:
    made = Remembering(Identity())
    states = [made.init(spec_of(tensor("normal"))) for _ in range(workers)]
    for step in range(10):
        inputs = [tensor("heavy", seed=10 * step + rank) for rank in range(workers)]
        plain, wrapped = meet(Identity(), inputs), meet(made, inputs, states, step)
        states = [outcome.state for outcome in wrapped]
        assert all(not state["error"].any() for state in states)
        assert all(torch.equal(a.result, b.result) for a, b in zip(plain, wrapped, strict=True))


@pytest.mark.long
@pytest.mark.technique("error_feedback", check=2)
def test_a_wrapped_identity_follows_bsp_to_the_bit() -> None:
    """A word of the test's own that sends everything and is given every tensor: `none` itself takes no memory."""
    with registry.temporary():

        @registry.technique("everything", paper="a test's own")
        @dataclass(frozen=True)
        class Everything(Identity):
            """Sends everything."""

            def accepts(self, spec: TensorSpec) -> bool:
                return True

        wrapped, plain = simulated("bsp / everything+ef", 30), simulated("bsp", 30)
    for one, other in zip(wrapped, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.path, other.path, strict=True))
        memory = one.optimizer.session.partitions[0].tiers[0].memory
        assert len(memory) == 3 and all(not state["error"].any() for state in memory.values())
