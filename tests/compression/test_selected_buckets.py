"""Whole buckets of selected values against one tensor after another: the same bytes, results and memory."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor
from laconic.compression.bucket import BucketMeet, Moment
from laconic.compression.optional import exchange_bucket_of
from laconic.compression.topk import TopK
from laconic.runtime.flat_memory import FlatMemories
from laconic.runtime.in_flight import _merge
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather
from tests.compression.table import answer_requests, compressor
from tests.kernels.on import gpu

SHAPES = [(1,), (40, 30), (7,), (3, 1100), (2,), (257,), (16, 32)]
SPECS = tuple(TensorSpec(f"p{i}", shape, torch.float32) for i, shape in enumerate(SHAPES))
WORDS = [
    "topk(0.01)",
    "topk(0.05, index=plain)",
    "topk(0.3)",
    "topk(0.01, threshold=sampled)",
    "topk(0.2, threshold=sampled)",
    "topk(0.2, threshold=sampled, index=plain)",
]
ENDS = ["", "+ef", "+ef(decay=0.5, inside=true)"]


def gradients(rank: int, step: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(100 * step + rank)
    found = [torch.randn(shape, generator=draw) ** 3 for shape in SHAPES]
    found[1][5:9] = 2.0  # ties
    found[3][1:] = 0.0
    if step == 1:
        found[1][3, 3], found[5][7] = torch.nan, -torch.inf
    return found


def meeting(rank: int, size: int, step: int, spec: TensorSpec) -> Meeting:
    return Meeting(rank, size, step, spec.name, 3, 0.25)


def answered(exchanges: list[Generator[Any, Any, Any]], sent: list[Tensor]) -> list[Any]:
    """Run the workers' exchanges of one request each, of a known length; note each worker's own bytes."""
    requests = [next(exchange) for exchange in exchanges]
    assert all(isinstance(request, Gather) for request in requests)
    sent += [request.tensor.clone() for request in requests]
    found = []
    for exchange, answer in zip(exchanges, answer_requests(requests), strict=True):
        with pytest.raises(StopIteration) as end:
            exchange.send(answer)
        found.append(end.value.value)
    return found


def one_by_one(made: Compressor, states: list[list[dict[str, Tensor]]], size: int, step: int, sent: list[Tensor]):
    def exchanged(rank: int) -> Generator[Any, Any, Any]:
        every = [
            made.exchange(x.clone(), state, meeting(rank, size, step, spec))
            for x, state, spec in zip(gradients(rank, step), states[rank], SPECS, strict=True)
        ]
        (batch,) = _merge({i: next(exchange) for i, exchange in enumerate(every)})
        parts = batch.split((yield batch.request))
        outcomes = []
        for i, exchange in enumerate(every):
            with pytest.raises(StopIteration) as end:
                exchange.send(parts[i])
            outcomes.append(end.value.value)
            states[rank][i].update(outcomes[-1].state)
        return outcomes

    return answered([exchanged(rank) for rank in range(size)], sent)


class Whole:
    """One worker's bucket, with its memory."""

    def __init__(self, made: Compressor, rank: int, size: int) -> None:
        self.made, self.rank, self.size = made, rank, size
        self.states = {spec.name: made.init(spec) for spec in SPECS}
        self.memories = FlatMemories()
        self.flat = torch.empty(sum(spec.numel for spec in SPECS))

    def exchange(self, step: int, own: bool) -> Generator[Any, Any, Any]:
        self.flat.copy_(torch.cat([x.view(-1) for x in gradients(self.rank, step)]))
        bucket = self.memories.of(SPECS, self.flat, lambda spec: self.states[spec.name])
        now = Moment(step, 0.25, lambda spec: meeting(self.rank, self.size, step, spec))
        found = exchange_bucket_of(self.made, bucket, BucketMeet(self.rank, self.size, own, SPECS, now))
        assert found is not None
        return found


def same(a: Tensor, b: Tensor) -> bool:
    return a.view(-1).view(torch.int32).equal(b.view(-1).view(torch.int32)) or (
        torch.equal(a.isnan().view(-1), b.isnan().view(-1))
        and torch.equal(a.nan_to_num().view(-1), b.nan_to_num().view(-1))
    )


def check(text: str, size: int, steps: int) -> None:
    made = compressor(text)
    states = [[made.init(spec) for spec in SPECS] for _ in range(size)]
    whole = [Whole(made, rank, size) for rank in range(size)]
    for step in range(steps):
        first, second = [], []
        outcomes = one_by_one(made, states, size, step, first)
        owns = answered([each.exchange(step, own=True) for each in whole], second)
        assert all(a.equal(b) for a, b in zip(first, second, strict=True)), "the bytes that are sent"
        for each, expected, own, before in zip(whole, outcomes, owns, states, strict=True):
            results = torch.cat([outcome.result.view(-1) for outcome in expected])
            assert same(each.flat, results), "the common result"
            if expected[0].sent is not None:
                assert same(own, torch.cat([outcome.sent.view(-1) for outcome in expected])), "the own contribution"
            for spec, state in zip(SPECS, before, strict=True):
                for key, value in state.items():
                    assert same(each.states[spec.name][key], value), "the memory"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("word", WORDS)
def test_a_bucket_is_exchanged_as_its_tensors_are(word: str, end: str) -> None:
    for size in (1, 3):
        check(word + end, size, 3)


@pytest.mark.long
@pytest.mark.parametrize("text", ["topk(0.02)+ef", "topk(0.01, threshold=sampled)+ef"])
def test_the_bodies_for_gpus_exchange_the_same_bucket(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("encode_largest", "encode_sampled", "average_places"):
        monkeypatch.setattr(kernels, name, getattr(gpu, name))
    check(text, 2, 2)


@pytest.mark.parametrize("text", ["topk(0.02)+ef", "topk(0.2, threshold=sampled)+ef"])
def test_nothing_is_computed_before_the_first_request_is_asked_for(text: str) -> None:
    """A CUDA graph records what happens from there on: what was computed before would be missing in replays."""
    whole = Whole(compressor(text), 0, 1)
    exchange = whole.exchange(0, own=False)
    before = [state["error"].clone() for state in whole.states.values()]
    assert not any(error.any() for error in before)
    next(exchange)
    assert any(state["error"].any() for state in whole.states.values())


def test_what_a_bucket_cannot_hold_is_exchanged_one_by_one() -> None:
    class Other(TopK):
        def choose(self, x: Tensor, meet: Any) -> Tensor:
            return super().choose(-x, meet)

    meet = BucketMeet(0, 1, False, SPECS, None)
    for made in (TopK(index="bitmap"), TopK(index="golomb"), Other()):
        bucket = FlatMemories().of(SPECS, torch.zeros(sum(spec.numel for spec in SPECS)), lambda spec: {})
        assert exchange_bucket_of(made, bucket, meet) is None
    remembering = compressor("topk(index=bitmap)+ef")
    bucket = FlatMemories().of(SPECS, torch.zeros(sum(spec.numel for spec in SPECS)), remembering.init)
    assert exchange_bucket_of(remembering, bucket, meet) is None
