"""The strategies that the planner prices: what techniques declare to be worth trying, in the combinations that make
sense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from laconic import registry
from laconic.errors import LaconicError, StrategyError
from laconic.planner.deployment import Deployment
from laconic.planner.guarantee import is_sixteen_bits
from laconic.planner.values import PlanError
from laconic.strategy import Sentence, Strategy, Tiers, Word
from laconic.values.tensor_spec import TensorSpec

_TYPICAL, _WORKERS = TensorSpec("typical", (1024, 1024), torch.float32), 8  # for which payloads are compared

Chain = tuple[Word, ...]


class Schedules(NamedTuple):
    """Schedules by what they plan with: sizes alone, or measured times and the next forward pass as well."""

    by_size: list[Word]
    by_time: list[Word]


class Rules(NamedTuple):
    """Sync rules to try with every compression, and sentences of rules to try as they are."""

    words: list[Word]
    sentences: list[Sentence]


def declared(axis: str) -> list[tuple[str, Sentence]]:
    """Return the settings that techniques of an axis declare to be worth trying, as texts and as sentences."""
    found = []
    for entry in registry.entries(axis):
        for text in entry.worth_trying:
            try:
                made = Strategy.parse(text)
            except LaconicError as error:
                raise PlanError(f"{entry.place} declares `{text}` to be worth trying: {error}") from error
            if not isinstance(made, Sentence):
                raise PlanError(f"{entry.place} declares `{text}` to be worth trying, which is more than one sentence")
            found.append((text, made))
    return found


def compressions() -> list[Chain]:
    """Return the chains of compressors that are worth trying, the largest payload first: the least is left out there,
    and of equally fast ones the first wins."""
    sentences = [sentence for _, sentence in declared("compression")]
    sentences.sort(key=lambda one: -one.compressor.payload_bytes(_TYPICAL, _WORKERS))
    return [sentence.compression for sentence in sentences]


def chains() -> list[str]:
    """Return the chains of compressors that are worth trying, in canonical form."""
    return ["+".join(map(str, chain)) for chain in compressions()]


def nearly_exact() -> list[Chain]:
    """Return the chains that send gradients as they are or rounded to 16 bits."""
    return [chain for chain in compressions() if chain == Sentence().compression or is_sixteen_bits(chain)]


def schedules() -> Schedules:
    """Return the schedules that are worth trying, the default and the simplest first."""
    found = [(word, word.make()) for word in (sentence.schedule for _, sentence in declared("schedule"))]
    found.sort(key=lambda one: (one[0].name != Sentence().schedule.name, one[1].decides, _by_time(one[1])))
    return Schedules(*([word for word, made in found if _by_time(made) is later] for later in (False, True)))


def _by_time(schedule: registry.Technique) -> bool:
    return bool(schedule.measures or schedule.finishes_late)  # type: ignore[attr-defined]


def rules(asynchronous: bool = False) -> Rules:
    """Return the sync rules that are worth trying, those that keep the fewest copies of the model first."""
    found = []
    for text, sentence in declared("sync"):
        rule = sentence.sync.make()
        stretches = rule.stretches(None)
        if not stretches:
            raise PlanError(f"`{text}` is declared to be worth trying, but without a `cadence` no one can price it")
        if stretches[-1].cadence.is_asynchronous is asynchronous:
            found.append((rule.copies, "/" in text, sentence))
    found.sort(key=lambda one: one[0])
    return Rules([s.sync for _, whole, s in found if not whole], [s for _, whole, s in found if whole])


def candidates(deployment: Deployment) -> Iterator[Strategy]:
    """Yield the candidate strategies for a deployment, without those that are invalid combinations."""
    for words in _words(deployment):
        try:
            yield Sentence.of(*words)
        except StrategyError:
            continue
    if deployment.units > 1:
        inner = Sentence()
        for chain in compressions():
            for rule in (inner.sync, *rules().words):
                try:
                    yield Tiers(((inner, "node"), (Sentence.of(rule, chain), "site")))
                except StrategyError:
                    continue


def _words(deployment: Deployment) -> Iterator[tuple[Word | Chain, ...]]:
    """Yield the words of one-level candidates: everything with the default architecture, and with the others what
    changes the mathematics little."""
    every, simple = compressions(), schedules()
    plain = Sentence()
    hosts = deployment.servers or deployment.workers
    for chain in every:
        for schedule in simple.by_size:
            yield plain.sync, chain, plain.architecture, schedule
    for schedule in simple.by_time:
        yield plain.sync, plain.compression, plain.architecture, schedule
    synchronous = rules()
    for rule in synchronous.words:
        for chain in every:
            yield rule, chain, plain.architecture
    for sentence in synchronous.sentences:
        yield sentence.sync, sentence.compression, _on_hosts(sentence.architecture, hosts), sentence.schedule
    for word in (sentence.architecture for _, sentence in declared("architecture")):
        if word != plain.architecture and (deployment.servers or not word.make().servers):
            for chain in nearly_exact():
                for schedule in simple.by_size:
                    yield plain.sync, chain, _on_hosts(word, hosts), schedule
    if max(deployment.slowness) > min(deployment.slowness):
        waiting_less = rules(asynchronous=True)
        for rule in waiting_less.words:
            for chain in every:
                yield rule, chain, _on_hosts(Sentence.of(rule).architecture, hosts)
        for sentence in waiting_less.sentences:
            yield sentence.sync, sentence.compression, _on_hosts(sentence.architecture, hosts), sentence.schedule


def _on_hosts(architecture: Word, hosts: int) -> Word:
    return Word.of(architecture.make().on_hosts(hosts))
