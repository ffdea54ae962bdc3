"""Whole buckets of quantised tensors: the messages, results and memories of one tensor after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from laconic.compression.base import Compressor, Outcome
from laconic.compression.bucket import BucketMeet, Moment, TensorBucket
from laconic.compression.optional import exchange_bucket_of
from laconic.runtime.flat_memory import FlatMemories
from laconic.runtime.in_flight import _merge
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.cases import first_of
from tests.compression.table import answer_requests, compressor, tensor

SPECS = tuple(
    TensorSpec(f"t{i}", shape, torch.float32)
    for i, shape in enumerate([(1,), (31,), (33,), (7, 11), (16, 32), (1031,)])
)
CHAINS = [
    "int8",
    "int8(block=64)",
    "int8+two_hop",
    "int8(block=64)+two_hop",
    "int8(block=32, rounding=stochastic)+two_hop",
    "int8(shared=true)+two_hop",
    "int8+two_hop(memory=true)",
    "int8(block=32)+two_hop(memory=true)+ef",
    "int8+two_hop(dense=true)",
    "int8+two_hop(memory=true, dense=true)",
    "int4+ef",
    "int4(block=33)+two_hop(memory=true)+ef",
    "int4+hadamard",
    "int4+hadamard+ef",
    "int4(block=32)+hadamard(16)+two_hop(memory=true)+ef",
    "qsgd(levels=1, bucket=64)+hadamard+ef",
    "fp8(block=64)+two_hop",
    "mx_block_codecs(mxfp8)+two_hop",
    "mx_block_codecs(mxfp4, rounding=stochastic)+two_hop+ef",
    "mx_block_codecs(mxfp8)+ef",
    "int8+ef",
    "int8(block=32)+ef",
    "qsgd",
    "qsgd+two_hop",
    "qsgd+ef",
    "qsgd(levels=127)+ef",
    "qsgd(levels=1, bucket=64)+ef",
    "scaled_sign+two_hop",
]


def answered(requests: list[list[Any]]) -> list[list[Any]]:
    """Return the answers to each worker's requests of one round."""
    return list(map(list, zip(*(answer_requests(alike) for alike in zip(*requests, strict=True)), strict=True)))


def one_by_one(made: Compressor, inputs: list[list[Tensor]], states: list[list[Any]], step: int) -> tuple[Any, Any]:
    """Return the outcomes of each worker's tensors, and the messages, merged as the runtime does."""
    size = len(inputs)
    exchanges = [
        [
            made.exchange(x.clone(), state, Meeting(rank, size, step, spec.name))
            for spec, x, state in zip(SPECS, inputs[rank], states[rank], strict=True)
        ]
        for rank in range(size)
    ]
    outcomes: list[list[Any]] = [[None] * len(SPECS) for _ in range(size)]
    answers: list[dict[int, Any]] = [dict.fromkeys(range(len(SPECS))) for _ in range(size)]
    messages = []
    while True:
        asked: list[dict[int, Any]] = [{} for _ in range(size)]
        for rank in range(size):
            for i, answer in answers[rank].items():
                try:
                    asked[rank][i] = exchanges[rank][i].send(answer)
                except StopIteration as end:
                    outcomes[rank][i] = end.value
        if not asked[0]:
            return outcomes, messages
        merged = [_merge(each) for each in asked]
        messages.append([(type(b.request).__name__, b.request.tensor.clone()) for b in (m[0] for m in merged)])
        assert all(len(m) == 1 for m in merged)
        found = answered([[batch.request for batch in m] for m in merged])
        answers = [merged[rank][0].split(found[rank][0]) for rank in range(size)]


def whole(made: Compressor, buckets: list[TensorBucket], step: int) -> tuple[list[Any], Any]:
    """Return each worker's own contribution, and the messages."""
    size = len(buckets)
    exchanges = []
    for rank, bucket in enumerate(buckets):

        def meet_of(spec: TensorSpec, rank: int = rank) -> Meeting:
            return Meeting(rank, size, step, spec.name)

        meet = BucketMeet(rank, size, True, tuple(SPECS), Moment(step, 1.0, meet_of))
        exchange = exchange_bucket_of(made, bucket, meet)
        assert exchange is not None
        exchanges.append(exchange)
    own: list[Any] = [None] * size
    answers: list[Any] = [None] * size
    messages = []
    while True:
        asked = []
        for rank, exchange in enumerate(exchanges):
            try:
                asked.append(exchange.send(answers[rank]))
            except StopIteration as end:
                own[rank] = end.value
        if not asked:
            return own, messages
        messages.append([(type(request).__name__, request.tensor.clone()) for request in asked])
        answers = answer_requests(asked)


@pytest.mark.parametrize("size", first_of([3, 1, 2, 4], 1))
@pytest.mark.parametrize("text", CHAINS)
def test_a_bucket_is_one_tensor_after_another(text: str, size: int) -> None:
    made = compressor(f"bsp / {text} / allreduce")
    states = [[made.init(spec) for spec in SPECS] for _ in range(size)]
    of_buckets = [{spec.name: made.init(spec) for spec in SPECS} for _ in range(size)]
    flats, memories = [torch.empty(sum(s.numel for s in SPECS)) for _ in range(size)], [FlatMemories() for _ in states]
    for step in range(3):
        kinds = ["normal", "heavy", "zero"] if step == 1 else ["heavy", "normal"]
        inputs = [
            [tensor(kinds[i % len(kinds)], spec.shape, 100 * step + 10 * rank + i) for i, spec in enumerate(SPECS)]
            for rank in range(size)
        ]
        if step == 2:
            inputs[0][3][0, 0] = float("nan")
        outcomes, messages = one_by_one(made, inputs, states, step)
        for flat, xs in zip(flats, inputs, strict=True):
            torch.cat([x.reshape(-1) for x in xs], out=flat)
        buckets = [
            memory.of(SPECS, flat, lambda spec, rank=rank: of_buckets[rank][spec.name])  # type: ignore[misc]
            for rank, (flat, memory) in enumerate(zip(flats, memories, strict=True))
        ]
        own, others = whole(made, buckets, step)
        assert [[(how, x.shape, x.dtype) for how, x in each] for each in messages] == [
            [(how, x.shape, x.dtype) for how, x in each] for each in others
        ]
        assert all(torch.equal(a, b) for one, two in zip(messages, others, strict=True)
                   for (_, a), (_, b) in zip(one, two, strict=True))  # fmt: skip
        for rank in range(size):
            states[rank] = [outcome.state for outcome in outcomes[rank]]
            alike(buckets[rank].parts(flats[rank]), [o.result for o in outcomes[rank]])
            for spec, state in zip(SPECS, states[rank], strict=True):
                alike([of_buckets[rank][spec.name][key] for key in state], list(state.values()))
            if all(outcome.sent is not None for outcome in outcomes[rank]):
                alike(buckets[rank].parts(own[rank]), [sent_of(o) for o in outcomes[rank]])


def sent_of(outcome: Outcome) -> Tensor:
    assert outcome.sent is not None
    return outcome.sent


def alike(found: Any, expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.reshape(-1), b.reshape(-1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("text", ["mx_block_codecs(nvfp4)+two_hop", "blockwise_8bit+two_hop", "one_bit+two_hop"])
def test_codecs_without_hot_loops_for_lists_take_one_tensor_at_a_time(text: str) -> None:
    bucket = TensorBucket(SPECS, torch.zeros(sum(s.numel for s in SPECS)))
    meet = BucketMeet(0, 2, False, (), None)
    assert exchange_bucket_of(compressor(f"bsp / {text} / allreduce"), bucket, meet) is None
