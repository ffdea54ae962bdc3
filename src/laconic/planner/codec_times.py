"""Encoding and decoding times that were not measured, estimated from those that were: on another GPU, of another
compressor."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files

import torch

from laconic.compression.optional import cost_of
from laconic.profile.gpus import Gpu, gpu
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec

MEASURED_ON = "H200"
_TYPICAL, _WORKERS = TensorSpec("typical", (1024, 1024), torch.float32), 8  # for which payloads are compared


def codecs_on(chip: Gpu) -> tuple[CodecTimes, ...]:
    """Return the times of all measured compressors on a GPU.

    Times per element are limited by memory, so they scale with its bandwidth; times per bucket and per tensor are
    launches by the host and are taken to be the same everywhere.
    """
    scale = gpu(MEASURED_ON).memory_bytes_per_second / chip.memory_bytes_per_second
    return tuple(
        replace(
            row,
            encode_seconds_per_element=scale * row.encode_seconds_per_element,
            decode_seconds_per_element=scale * row.decode_seconds_per_element,
        )
        for row in _measured()
    )


def nearest_timed(chain: tuple[Word, ...], known: Iterable[CodecTimes]) -> CodecTimes | None:
    """Return the times to expect of a chain that was not timed, or None where no compressor was.

    They are those of the nearest chain: first of all one whose compressor is the same, then one that declares the same
    `cost`, whose payloads meet in the same way, and whose payload is about as large.
    """
    timed = [(words, times) for times in known for words in _compression_of(times)]
    name, cost, meets, nbytes = _traits(chain)

    def distance(one: tuple[tuple[Word, ...], CodecTimes]) -> tuple[bool, bool, bool, float]:
        its_name, its_cost, its_meets, its_nbytes = _traits(one[0])
        return its_name != name, its_cost != cost, its_meets != meets, abs(math.log(its_nbytes / nbytes))

    return min(timed, key=distance)[1] if timed else None


def _compression_of(times: CodecTimes) -> Iterator[tuple[Word, ...]]:
    """Yield the chain of compressors that was timed, where it was one: profiles also hold times of architectures."""
    strategy = Strategy.parse(times.words)
    if isinstance(strategy, Sentence) and strategy.compression != Sentence().compression:
        yield strategy.compression


def _traits(chain: tuple[Word, ...]) -> tuple[str, str, str, float]:
    """Return the name and the cost of a chain's first compressor, how its payloads meet, and their bytes."""
    first = next(word for word in chain if not word.technique.wraps).make()
    whole = Sentence.of(chain).compressor
    return first.name, cost_of(first), whole.meets, max(1, whole.payload_bytes(_TYPICAL, _WORKERS))


@cache
def _measured() -> tuple[CodecTimes, ...]:
    """Return the times that `bench/codecs.py` measured."""
    text = (files("laconic.planner") / "measured" / "codecs.csv").read_text(encoding="utf-8")
    names = [field.name for field in fields(CodecTimes) if field.name != "words"]
    rows = csv.DictReader(text.splitlines())
    return tuple(CodecTimes(row["words"], *(float(row[name]) for name in names)) for row in rows)
