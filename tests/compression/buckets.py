"""One bucket exchanged as a whole and tensor by tensor, among workers in memory: what both send, leave and remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laconic.compression.base import Compressor, State
from laconic.compression.bucket import BucketMeet, Moment, TensorBucket
from laconic.compression.optional import exchange_bucket_of
from laconic.runtime.flat_memory import FlatMemories
from laconic.runtime.meeting import Meeting
from laconic.testing.in_memory import answer_requests
from laconic.values.tensor_spec import TensorSpec

RATE = 0.5


@dataclass
class Exchanged:
    """What every worker had after some steps: bytes of each round, results, own contributions and memories."""

    messages: list[list[Tensor]] = field(default_factory=list)
    results: list[list[Tensor]] = field(default_factory=list)
    sent: list[list[Tensor | None]] = field(default_factory=list)  # None where it is not told apart
    states: list[list[State]] = field(default_factory=list)


def specs_of(shapes: Sequence[tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"t{i}", shape, torch.float32) for i, shape in enumerate(shapes))


def drawn(specs: Sequence[TensorSpec], worker: int, step: int) -> list[Tensor]:
    """Return the gradients of a worker: another one in every step, and now and then a tensor of zeros."""
    draw = torch.Generator().manual_seed(100 * worker + step)
    return [
        torch.randn(spec.shape, generator=draw) * (0.0 if step == 1 and i == 0 else 3.0**i)
        for i, spec in enumerate(specs)
    ]


def one_by_one(compressor: Compressor, specs: Sequence[TensorSpec], workers: int, steps: int) -> Exchanged:
    """Exchange each tensor by itself; the requests of a round share a message, in the order of tensors."""
    found = Exchanged(states=[[compressor.init(spec) for spec in specs] for _ in range(workers)])
    for step in range(steps):
        gradients = [drawn(specs, worker, step) for worker in range(workers)]
        rounds: list[list[list[Tensor]]] = []
        outcomes: list[list[Any]] = [[] for _ in range(workers)]
        for i, spec in enumerate(specs):
            exchanges = [
                compressor.exchange(
                    gradients[w][i].clone(), found.states[w][i], Meeting(w, workers, step, spec.name, 0, RATE)
                )
                for w in range(workers)
            ]
            ended, requests = _run(exchanges)
            for number, round_ in enumerate(requests):
                if number == len(rounds):
                    rounds.append([[] for _ in range(workers)])
                for w in range(workers):
                    rounds[number][w].append(round_[w])
            for w, outcome in enumerate(ended):
                outcomes[w].append(outcome)
                found.states[w][i] = {key: value.clone() for key, value in outcome.state.items()}
        found.messages += [[torch.cat(parts) for parts in round_] for round_ in rounds]
        found.results.append([torch.cat([o.result.reshape(-1) for o in own]) for own in outcomes])
        found.sent.append(
            [None if own[0].sent is None else torch.cat([o.sent.reshape(-1) for o in own]) for own in outcomes]
        )
    return found


def as_a_whole(
    compressor: Compressor, specs: tuple[TensorSpec, ...], workers: int, steps: int, own: bool = True
) -> Exchanged:
    """Exchange the tensors as one bucket, with memories as the engines keep them."""
    memories = [FlatMemories() for _ in range(workers)]
    found = Exchanged(states=[[compressor.init(spec) for spec in specs] for _ in range(workers)])
    flats = [torch.empty(sum(spec.numel for spec in specs)) for _ in range(workers)]

    for step in range(steps):
        exchanges = []
        for w in range(workers):
            flats[w].copy_(torch.cat([x.reshape(-1) for x in drawn(specs, w, step)]))
            by_name = dict(zip([spec.name for spec in specs], found.states[w], strict=True))
            bucket: TensorBucket = memories[w].of(specs, flats[w], lambda spec, kept=by_name: kept[spec.name])  # type: ignore[misc]
            now = Moment(step, RATE, lambda spec, w=w, step=step: Meeting(w, workers, step, spec.name, 0, RATE))  # type: ignore[misc]
            meet = BucketMeet(w, workers, own, specs, now)
            exchange = exchange_bucket_of(compressor, bucket, meet)
            assert exchange is not None, "these tensors are exchanged one by one"
            exchanges.append(exchange)
        ended, requests = _run(exchanges)
        found.messages += requests
        found.results.append([flat.clone() for flat in flats])
        found.sent.append([None if sent is None else sent.clone() for sent in ended])
    return found


def _run(exchanges: Sequence[Any]) -> tuple[list[Any], list[list[Tensor]]]:
    """Run the exchanges of all workers; return what each ended with, and the flat payloads of each round."""
    ended: list[Any] = [None] * len(exchanges)
    answers: list[Any] = [None] * len(exchanges)
    rounds: list[list[Tensor]] = []
    while True:
        requests = []
        for rank, exchange in enumerate(exchanges):
            try:
                requests.append(exchange.send(answers[rank]))
            except StopIteration as end:
                ended[rank] = end.value
        if not requests:
            return ended, rounds
        rounds.append([request.tensor.reshape(-1).clone() for request in requests])
        answers = answer_requests(requests)


def assert_equal(whole: Exchanged, single: Exchanged) -> None:
    """Check that both sent, left and remembered the same, bit by bit."""
    assert len(whole.messages) == len(single.messages)
    for kind in ("messages", "results", "sent"):
        for step, (mine, other) in enumerate(zip(getattr(whole, kind), getattr(single, kind), strict=True)):
            for w, (a, b) in enumerate(zip(mine, other, strict=True)):
                same = a is None or b is None or (a.dtype == b.dtype and torch.equal(a, b))
                assert same, f"{kind}, step or round {step}, worker {w}"
    for w, (mine, other) in enumerate(zip(whole.states, single.states, strict=True)):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a.keys() == b.keys()
            for key, value in b.items():
                assert a[key].dtype == value.dtype and torch.equal(a[key], value), f"{key} of tensor {i}, worker {w}"
