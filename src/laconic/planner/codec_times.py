"""Encoding and decoding times that were not measured, estimated from those that were: on another GPU, of another
compressor."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

from laconic.profile.gpus import Gpu, gpu
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.profile import CodecTimes

MEASURED_ON = "H200"
_TYPICAL_ELEMENTS = 2**20  # of the tensor by which times are compared


def codecs_on(chip: Gpu) -> tuple[CodecTimes, ...]:
    """Return the times of all measured compressors on a GPU.

    Times per element are limited by memory, so they scale with its bandwidth; times per tensor are launches by the
    host and are taken to be the same everywhere.
    """
    scale = gpu(MEASURED_ON).memory_bytes_per_second / chip.memory_bytes_per_second
    return tuple(
        CodecTimes(
            row.words,
            row.encode_seconds_per_tensor,
            scale * row.encode_seconds_per_element,
            row.decode_seconds_per_tensor,
            scale * row.decode_seconds_per_element,
        )
        for row in _measured()
    )


def of_its_kind(chain: tuple[Word, ...], known: Iterable[CodecTimes]) -> CodecTimes | None:
    """Return the times to expect of a chain that was not timed, or None where no compressor was.

    They are those of the slowest that has the same words, or whose first compressor declares the same `cost`, or of
    all: better too slow than recommended for a time that nobody has seen.
    """
    timed = [(words, times) for times in known for words in _compression_of(times)]
    names, cost = [word.name for word in chain], _cost(chain)
    same = [times for words, times in timed if [word.name for word in words] == names]
    alike = [times for words, times in timed if _cost(words) == cost]
    every = [times for _, times in timed]
    return max(same or alike or every, key=_seconds, default=None)


def _compression_of(times: CodecTimes) -> Iterator[tuple[Word, ...]]:
    """Yield the chain of compressors that was timed, where it was one: profiles also hold times of architectures."""
    strategy = Strategy.parse(times.words)
    if isinstance(strategy, Sentence) and strategy.compression != Sentence().compression:
        yield strategy.compression


def _cost(chain: tuple[Word, ...]) -> str:
    first = next(word for word in chain if not word.technique.wraps).make()
    cost: str = first.cost
    return cost


def _seconds(times: CodecTimes) -> float:
    return times.seconds("encode", 1, _TYPICAL_ELEMENTS) + times.seconds("decode", 1, _TYPICAL_ELEMENTS)


@cache
def _measured() -> tuple[CodecTimes, ...]:
    """Return the times that `bench/codecs.py` measured."""
    text = (files("laconic.planner") / "measured" / "codecs.csv").read_text(encoding="utf-8")
    names = [f"{part}_seconds_per_{of}" for part in ("encode", "decode") for of in ("tensor", "element")]
    rows = csv.DictReader(text.splitlines())
    return tuple(CodecTimes(row["words"], *(float(row[name]) for name in names)) for row in rows)
