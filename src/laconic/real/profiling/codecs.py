"""Times of encoding and decoding: every registered compressor and every architecture that averages in a group, on the
model's own tensors.

All workers measure at the same time, on an echo group, so that they share cores and memory as in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from laconic import registry
from laconic.compression.optional import refusal_of_memory
from laconic.real.profiling.echo_group import EchoGroup
from laconic.runtime.in_flight import concurrently, waited_for
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Group, Reduce

_CPU = torch.device("cpu")
_TYPICAL = 1e-3  # size of a gradient's element
_SMALL = tuple(TensorSpec(f"small{k}", (16, 16), torch.float32) for k in range(16))

Parts = tuple[float, float]
"""Seconds of computation before the first message is sent, and after it."""


class Codecs:
    """Timed trials, in rounds, of every compressor (alone and with error feedback) and every architecture, with each
    choice of their knobs."""

    def __init__(
        self,
        world: Group,
        echo: EchoGroup,
        specs: Sequence[TensorSpec],
        chains: Sequence[str] | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self._trials: list[_Trials] = []
        for chain in _compressions() if chains is None else [_chain(text) for text in chains]:
            tier = Tier(Sentence.of(chain), echo)
            self._trials.append(_Trials(world, tier.compression, _SMALL, specs, partial(_encoding, tier, echo, device)))
        whole = TensorSpec("message", (sum(spec.numel for spec in specs),), torch.float32)
        for word in _with_choices("architecture"):
            architecture = word.make()
            if (
                not architecture.collective or "average" not in architecture.offers
            ):  # an echo has no server, and no neighbours
                continue
            tier = Tier(Sentence.of(word), echo)
            self._trials.append(_Trials(world, str(word), _SMALL[:1], [whole], partial(_carrying, tier, echo)))

    def round(self) -> None:
        """Run one more trial of each; all workers must call it."""
        for trials in self._trials:
            trials.take()

    def result(self) -> tuple[CodecTimes, ...]:
        return tuple(trials.times() for trials in self._trials)


class _Trials:
    """Trials of one sentence's words on a few small tensors and on the model's own: the slowest worker's time, after a
    common start."""

    def __init__(
        self,
        world: Group,
        words: str,
        few: Sequence[TensorSpec],
        many: Sequence[TensorSpec],
        prepare: Callable[[Sequence[TensorSpec]], Callable[[], Parts]],
    ) -> None:
        self._world, self._words = world, words
        self._cases = [(some, prepare(some)) for some in (few, many)]
        self._seen: list[list[Parts]] = [[], []]

    def take(self) -> None:
        for seen, (_, run) in zip(self._seen, self._cases, strict=True):
            if not seen:
                run()
            self._world.barrier().wait()
            took = torch.tensor(run(), dtype=torch.float64)
            encode, decode = self._world.all_reduce(took, "max", control=1.0).wait().tolist()
            seen.append((encode, decode))

    def times(self) -> CodecTimes:
        """Return the seconds per tensor and per element, neither negative."""
        (few, _), (many, _) = self._cases
        elements = sum(spec.numel for spec in many)
        solved: list[float] = []
        for part in (0, 1):
            small, large = (statistics.median(parts[part] for parts in seen) for seen in self._seen)
            per_tensor = min(small / len(few), large / len(many))
            solved += [per_tensor, max(0.0, large - len(many) * per_tensor) / elements]
        return CodecTimes(self._words, *solved)


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


def _encoding(tier: Tier, echo: EchoGroup, device: torch.device, specs: Sequence[TensorSpec]) -> Callable[[], Parts]:
    """Return a trial that averages these tensors once and copies the means back.

    The cost of a selection depends on the values: they are normal, as gradients nearly are, and new each time.
    """
    accepted = [spec for spec in specs if tier.compressor.accepts(spec)]
    places = [torch.zeros(spec.shape, dtype=spec.dtype, device=device) for spec in accepted]
    draw = torch.Generator(device).manual_seed(0)

    def communicate() -> Communication[None]:
        for place, mean in zip(places, (yield from tier.average(accepted, places, 0)), strict=True):
            place.copy_(mean)

    def trial() -> Parts:
        for place in places:
            place.normal_(std=_TYPICAL, generator=draw)
        return _timed(communicate(), echo, device)

    return trial


def _carrying(tier: Tier, echo: EchoGroup, specs: Sequence[TensorSpec]) -> Callable[[], Parts]:
    """Return a trial that carries one message through an architecture."""
    place = torch.zeros(specs[0].shape, dtype=specs[0].dtype)
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
