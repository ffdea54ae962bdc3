"""Encoding and decoding times on GPUs that are not at hand: measured on one, and scaled by memory bandwidth."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from laconic.profile.gpus import Gpu, gpu
from laconic.values.profile import CodecTimes

MEASURED_ON = "H200"


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


@cache
def _measured() -> tuple[CodecTimes, ...]:
    """Return the times that `bench/codecs.py` measured."""
    text = (files("laconic.planner") / "measured" / "codecs.csv").read_text(encoding="utf-8")
    names = [f"{part}_seconds_per_{of}" for part in ("encode", "decode") for of in ("tensor", "element")]
    rows = csv.DictReader(text.splitlines())
    return tuple(CodecTimes(row["words"], *(float(row[name]) for name in names)) for row in rows)
