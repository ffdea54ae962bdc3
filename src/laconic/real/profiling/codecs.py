"""Times of encoding and decoding: every registered compressor and every architecture that averages in a group, on
buckets of the model's own tensors.

Buckets are exchanged as the runtime does it: as a whole where the compressor can, and on a GPU as CUDA graphs where
they can be recorded. All workers measure at the same time, on an echo group, so that they share cores and memory as in
a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from laconic import registry
from laconic.compression.optional import refusal_of_memory
from laconic.real.profiling.echo_group import EchoGroup
from laconic.real.profiling.tried_buckets import TriedBucket
from laconic.runtime.bucket_uses import BucketReport
from laconic.runtime.in_flight import concurrently, waited_for
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Group, Reduce

_CPU = torch.device("cpu")
_FEW = tuple(TensorSpec(f"few{k}", (16, 16), torch.float32) for k in range(4))
_SOME = tuple(
    TensorSpec(f"some{k}", (16, 16), torch.float32) for k in range(32)
)  # beside the few, so that what a bucket takes is told from what a tensor takes
_WARM_UP = {"cuda": 4, "cpu": 1}  # trials before the first counts: the fourth on a GPU is recorded

Buckets = Sequence[Sequence[TensorSpec]]
Parts = tuple[float, float]
"""Seconds of computation before the first message is sent, and after it."""


class Codecs:
    """Timed trials, in rounds, of every compressor (alone and with error feedback) and every architecture, with each
    choice of their knobs; or of the given chains of compressors, and without `architectures`."""

    def __init__(
        self,
        world: Group,
        echo: EchoGroup,
        specs: Sequence[TensorSpec],
        chains: Sequence[str] | None = None,
        device: torch.device = _CPU,
        architectures: bool = True,
    ) -> None:
        self._trials: list[_Trials] = []
        self._tiers: list[Tier] = []
        for chain in _compressions() if chains is None else [_chain(text) for text in chains]:
            tier = Tier(Sentence.of(chain), echo)
            cases: list[Buckets] = [[_FEW], [_SOME], _buckets_of(specs)]
            encoding = partial(_encoding, tier, echo, device)
            self._trials.append(_Trials(world, tier.compression, cases, encoding, _WARM_UP[device.type]))
            self._tiers.append(tier)
        whole = TensorSpec("message", (sum(spec.numel for spec in specs),), torch.float32)
        for word in _with_choices("architecture") if architectures else ():
            architecture = word.make()
            echoes = architecture.collective and not architecture.follows_content
            if not echoes or "average" not in architecture.offers:  # an echo has no server, and no neighbours
                continue
            tier = Tier(Sentence.of(word), echo)
            carried: list[Buckets] = [[_FEW[:1]], [_FEW[:1]], [[whole]]]
            self._trials.append(_Trials(world, str(word), carried, partial(_carrying, tier, echo)))

    def round(self) -> None:
        """Run one more trial of each; all workers must call it."""
        for trials in self._trials:
            trials.take()

    def bucket_reports(self) -> list[BucketReport]:
        """Return how each compressor's buckets were exchanged, those of the model last."""
        return [report for tier in self._tiers for report in tier.whole.reports()]

    def result(self) -> tuple[CodecTimes, ...]:
        return tuple(trials.times() for trials in self._trials)


class _Trials:
    """Trials of one sentence's words on a bucket of few small tensors, on one of more and on the model's own: the
    slowest worker's time, after a common start."""

    def __init__(
        self,
        world: Group,
        words: str,
        cases: Sequence[Buckets],
        prepare: Callable[[Buckets], Callable[[], Parts]],
        warm_up: int = 1,
    ) -> None:
        self._world, self._words, self._warm_up = world, words, warm_up
        self._cases = [(buckets, prepare(buckets)) for buckets in cases]
        self._seen: list[list[Parts]] = [[] for _ in cases]

    def take(self) -> None:
        for seen, (_, run) in zip(self._seen, self._cases, strict=True):
            for _ in range(0 if seen else self._warm_up):
                run()
            self._world.barrier().wait()
            took = torch.tensor(run(), dtype=torch.float64)
            encode, decode = self._world.all_reduce(took, "max", control=1.0).wait().tolist()
            seen.append((encode, decode))

    def times(self) -> CodecTimes:
        """Return the seconds per bucket, per tensor and per element, none of them negative."""
        counts = [
            (len(buckets), sum(map(len, buckets)), sum(spec.numel for specs in buckets for spec in specs))
            for buckets, _ in self._cases
        ]
        encode, decode = (
            _solved(counts, [statistics.median(parts[part] for parts in seen) for seen in self._seen])
            for part in (0, 1)
        )
        return CodecTimes(self._words, *encode[1:], *decode[1:], encode[0], decode[0])


def _solved(counts: Sequence[tuple[int, int, int]], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the seconds per bucket, per tensor and per element from those of three cases, of which each has its
    numbers of buckets, tensors and elements; the third has by far the most elements."""
    (_, few, _), (_, some, _), (buckets, tensors, elements) = counts
    per_tensor = max(0.0, (seconds[1] - seconds[0]) / (some - few)) if some > few else 0.0
    per_bucket = max(0.0, seconds[0] - few * per_tensor)
    fixed = buckets * per_bucket + tensors * per_tensor
    scale = min(1.0, seconds[2] / fixed) if fixed else 1.0  # a large case that was faster than many small ones
    return scale * per_bucket, scale * per_tensor, max(0.0, seconds[2] - fixed) / elements


def _buckets_of(specs: Sequence[TensorSpec]) -> Buckets:
    """Return the model's tensors in the buckets of the default schedule."""
    plan = Sentence().schedule.make().plan(list(specs), list(reversed(range(len(specs)))))
    return [[specs[i] for i in bucket] for bucket in plan.buckets]


def _compressions() -> list[tuple[Word, ...]]:
    memory = Word("error_feedback")
    words = [Word(e.name) for e in registry.entries("compression") if e.kind == "word" and e.name != "none"]
    alone = [word for word in words if not word.technique.wraps and word.make().meets != "edge"]
    return [(word,) for word in alone] + [(w, memory) for w in alone if refusal_of_memory(w.make()) is None]


def _chain(text: str) -> tuple[Word, ...]:
    """Parse the text of a compression chain into its words."""
    sentence = Strategy.parse(text)
    assert isinstance(sentence, Sentence)
    return sentence.compression


def _with_choices(axis: str) -> list[Word]:
    words: list[Word] = []
    for entry in registry.entries(axis):
        if entry.kind == "word":
            plain = Word(entry.name)
            knobs = registry.knobs(plain.technique)
            words += [plain, *(Word.of(entry.name, **{k.name: c}) for k in knobs for c in k.bounds.choices or ())]
    return list({str(word): word for word in words}.values())


def _encoding(tier: Tier, echo: EchoGroup, device: torch.device, buckets: Buckets) -> Callable[[], Parts]:
    """Return a trial that exchanges these buckets once, one after another, as the runtime does."""
    accepted = [[spec for spec in specs if tier.compressor.accepts(spec)] for specs in buckets]
    tried = [TriedBucket(tier, specs, device) for specs in accepted if specs]

    def trial() -> Parts:
        encode = decode = 0.0
        for bucket in tried:
            bucket.renew()
            with torch.cuda.stream(bucket.lane) if bucket.lane is not None else nullcontext():
                parts = _timed(bucket.exchange(), echo, device)
            encode, decode = encode + parts[0], decode + parts[1]
        return encode, decode

    return trial


def _carrying(tier: Tier, echo: EchoGroup, buckets: Buckets) -> Callable[[], Parts]:
    """Return a trial that carries one message through an architecture."""
    spec = buckets[0][0]
    place = torch.zeros(spec.shape, dtype=spec.dtype)
    return lambda: _timed(concurrently([tier.carry(Reduce(place, "sum"))]), echo)


def _timed(communication: Communication[Any], echo: EchoGroup, device: torch.device = _CPU) -> Parts:
    begin, echo.copy_seconds = _now(device), 0.0
    left: float | None = None
    answers: Any = None
    try:
        while True:
            answers = waited_for(communication.send(answers))
            if left is None:
                left, sent = _now(device), echo.copy_seconds
    except StopIteration:
        end = _now(device)
    if left is None:
        return end - begin, 0.0
    return left - begin - sent, end - left - (echo.copy_seconds - sent)


def _now(device: torch.device) -> float:
    """Return the time once all queued work is done, also on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
