"""A language model of bytes on the frozen text of Python sources (`bench/corpus.py`)."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from bench.corpus import digest, read
from bench.tasks.text import Length, Text, Tokens
from bench.tasks.transformer import Shape


class Bytes(Text):
    """A transformer whose tokens are bytes."""

    name = "bytes"
    home, made_by = Path(__file__).resolve().parents[2] / "runs" / "corpus.xz", "bench/corpus.py"
    usual = Shape(layers=4, width=256, context=256)

    @staticmethod
    def digest(data: Path) -> str:
        return digest(data)

    @staticmethod
    def length(data: Path) -> Length:
        count = int(json.loads(data.with_suffix(".json").read_text())["training_bytes"])
        return Length(count, count)

    @staticmethod
    @lru_cache(maxsize=1)
    def read(data: Path, device: torch.device) -> Tokens:
        training, validation = (torch.from_numpy(np.frombuffer(text, np.uint8).copy()) for text in read(data))
        return Tokens(training.to(device), validation.to(device), torch.ones(256, dtype=torch.int64, device=device))
