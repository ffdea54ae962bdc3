"""The frozen text in byte pairs (`bench/byte_pairs.py`): what a larger vocabulary changes."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from bench.tasks.text import Length, Text, Tokens
from bench.tasks.transformer import Shape


class Bpe(Text):
    """A transformer whose tokens are of several bytes."""

    name = "bpe"
    home = Path(__file__).resolve().parents[2] / "runs" / "corpus.bpe.npz"
    made_by = "bench/corpus.py, and bench/byte_pairs.py on its result"
    usual = Shape(layers=6, width=384, context=512)

    @staticmethod
    def digest(data: Path) -> str:
        return hashlib.sha256(data.read_bytes()).hexdigest()[:16]

    @staticmethod
    def length(data: Path) -> Length:
        with np.load(data, allow_pickle=False) as kept:
            training, lengths = kept["training"], kept["lengths"]
        return Length(len(training), int(lengths[training].sum()))

    @staticmethod
    @lru_cache(maxsize=1)
    def read(data: Path, device: torch.device) -> Tokens:
        with np.load(data, allow_pickle=False) as kept:
            found = {name: torch.from_numpy(kept[name].astype(np.int32)).to(device) for name in kept.files}
        return Tokens(found["training"], found["validation"], found["lengths"])
