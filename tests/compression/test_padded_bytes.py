"""What two hops send for tensors that workers do not divide: every owner's part is as long as the longest, in whole
bytes, and the ledger of a training counts that padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import laconic
from laconic.compression.chain import chain
from laconic.compression.raw import Raw
from laconic.compression.two_hop import TwoHop
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.compression.table import OfShapes, compressor, meet, tensor

SHAPES = [(3, 5), (7,), (1,), (13, 3), (5, 3, 3), (121,), (31, 17)]
"""Odd sizes, larger and smaller than eight a worker, of tensors with and without columns."""
WORKERS = [2, 3, 4, 5]


def bytes_of_a_step(strategy: str, workers: int) -> list[tuple[float, float, float, float]]:
    """Of every worker: payload bytes sent and received, and control bytes sent and received, in the third step."""

    def body() -> tuple[float, float, float, float]:
        ledger, model = connect().ledger, OfShapes(SHAPES)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy)
        before = after = (0.0, 0.0, 0.0, 0.0)
        for step in range(3):
            before = after
            model(100 * step + laconic.rank()).backward()
            optimizer.step()
            optimizer.zero_grad()
            kinds = (Kind.PAYLOAD, Kind.CONTROL)
            payload, control = ((ledger.sent_bytes(kind), ledger.received_bytes(kind)) for kind in kinds)
            after = (*payload, *control)
        sent = [b - a for a, b in zip(before, after, strict=True)]
        return sent[0], sent[1], sent[2], sent[3]

    found: list[tuple[float, float, float, float]] = laconic.simulate(body, workers).results
    return found


def bits_of(shape: tuple[int, ...], workers: int) -> float:
    """One direction of a vote, for one owner: its part of the signs, in whole bytes."""
    return math.ceil(math.prod(shape) / (8 * workers))


def columns_of(shape: tuple[int, ...], workers: int) -> float:
    """One direction of 1-bit SGD, for one owner: the signs and the pairs of whole columns, or a part of a vector."""
    columns = math.prod(shape[1:]) if len(shape) > 1 else workers
    owned = math.ceil(columns / workers)
    length = shape[0] if len(shape) > 1 else math.ceil(shape[0] / workers)
    return math.ceil(length * owned / 8) + 8 * owned


def ternaries_of(shape: tuple[int, ...], workers: int) -> float:
    """Half of both directions of TernGrad, for one owner: digits up, sums down, and its share of an agreed scale."""
    part = 8 * math.ceil(math.prod(shape) / (8 * workers))
    return (part * 2 / 8 + part * math.ceil(math.log2(2 * workers + 1)) / 8 + 2 * 4 / workers) / 2


@pytest.mark.technique("sign_sgd", check=3)
@pytest.mark.technique("signum", check=2)
@pytest.mark.technique("one_bit_sgd", check=2)
@pytest.mark.technique("terngrad", check=3)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("strategy", "each"),
    [("sign_sgd", bits_of), ("signum", bits_of), ("one_bit_sgd", columns_of), ("terngrad", ternaries_of)],
)
def test_a_step_sends_every_owners_part_with_its_padding(
    strategy: str, each: Callable[[tuple[int, ...], int], float], workers: int
) -> None:
    """In each direction one part for each of the other workers; beside it a flag for each tensor, in float32."""
    payload = 2 * (workers - 1) * sum(each(shape, workers) for shape in SHAPES)
    control = 2 * (workers - 1) / workers * 4 * len(SHAPES)
    expected = (payload, payload, control, control)
    assert bytes_of_a_step(strategy, workers) == [pytest.approx(expected, abs=1e-4)] * workers


@pytest.mark.technique("one_bit_sgd", check=1)
@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("text", ["one_bit+two_hop", "one_bit(per=tensor)+two_hop"])
@pytest.mark.parametrize("n", [1, 4, 7, 11, 16, 101])
def test_padding_of_a_vector_changes_no_mean(text: str, n: int, workers: int) -> None:
    """What a worker says of a part has the sum of that part, and the owner's answer the sum of what all said; also
    where every value is positive, so that padding with zeros would make the mean smaller."""
    each = math.ceil(n / workers)
    for kind, shift in (("normal", 0.0), ("normal", 9.0), ("heavy", 0.0), ("normal", -9.0)):
        inputs = [tensor(kind, (n,), 7 * n + rank) + shift for rank in range(workers)]
        outcomes = meet(compressor(text), inputs)
        said = torch.stack([outcome.sent for outcome in outcomes if outcome.sent is not None]).double()
        assert len(said) == workers
        for a in range(0, n, each):
            for x, sent in zip(inputs, said, strict=True):
                part, found = x[a : a + each].double(), sent[a : a + each]
                assert abs(float(found.sum() - part.sum())) <= 1e-6 * float(part.abs().sum())
                assert found.unique().numel() <= 2
            answer = outcomes[0].result[a : a + each].double().sum()
            mean = said[:, a : a + each].mean(dim=0)
            assert abs(float(answer - mean.sum())) <= 1e-6 * float(mean.abs().sum())


@dataclass(frozen=True)
class Marked(Raw):
    """Values as they are, and behind them one and the sum of the squares of those that are the tensor's."""

    def filled(self, part: Tensor, real: int) -> Tensor:
        return torch.cat([part[:real], (1 + part[:real].square().sum()).expand(part.numel() - real)])


@pytest.mark.parametrize("memory", [False, True])
def test_a_codec_is_told_how_many_values_of_a_part_are_the_tensors(memory: bool) -> None:
    """Five values of four owners: two, two, one and none, in both hops; the padding is nobody's result."""
    inputs = [torch.arange(1.0, 6) * (1 + rank) for rank in range(4)]
    messages: list[list[tuple[str, Tensor]]] = []
    outcomes = meet(chain([Marked(), TwoHop(memory=memory)]), inputs, payloads=messages)

    def parts(x: Tensor) -> list[list[float]]:
        a, b, c, d, e = x.tolist()
        return [[a, b], [c, d], [e, 1 + e * e], [1.0, 1.0]]

    for x, sent in zip(inputs, messages, strict=True):
        assert sent[0][1].view(torch.float32).tolist() == parts(x)
    mean = torch.stack(inputs).mean(dim=0)
    assert [sent[1][1].view(torch.float32).tolist() for sent in messages] == parts(mean)
    assert all(torch.equal(outcome.result, mean) for outcome in outcomes)
