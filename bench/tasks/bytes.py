"""A language model of bytes on the frozen text of Python sources (`bench/corpus.py`)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from bench.corpus import read
from bench.tasks.text import Text, Tokens
from bench.tasks.transformer import Shape

SHAPE = Shape(layers=4, width=256, context=256)
CORPUS = Path(__file__).resolve().parents[2] / "runs" / "corpus.xz"


class Bytes(Text):
    """A transformer whose tokens are bytes."""

    name = "bytes"

    def __init__(
        self,
        device: torch.device | str = "cpu",
        batch: int = 8,
        workers: int = 8,
        skewed: bool = False,
        data: Path = CORPUS,
        shape: Shape = SHAPE,
    ) -> None:
        if not data.is_file():
            raise SystemExit(f"there is no text at {data}: run bench/corpus.py")
        super().__init__(tokens_of(data, torch.device(device)), shape, batch, workers, skewed)


@lru_cache(maxsize=1)
def tokens_of(data: Path, device: torch.device) -> Tokens:
    training, validation = (torch.from_numpy(np.frombuffer(text, np.uint8).copy()) for text in read(data))
    return Tokens(training.to(device), validation.to(device), torch.ones(256, dtype=torch.int64, device=device))
