"""The tasks of the ladder by name, on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.corpus import read
from bench.rungs.choosing import WORKERS, Rung
from bench.tasks.bytes import Bytes, Shape


def task_of(rung: Rung, corpus: Path, device: torch.device, workers: int, skewed: bool, texts: dict[str, Any]) -> Any:
    """Return a rung's task for so many workers, who share the batch of eight; `texts` keeps what was read."""
    if not texts:
        training, validation = read(corpus)
        texts["training"], texts["validation"] = (
            torch.from_numpy(np.frombuffer(text, np.uint8).copy()).to(device) for text in (training, validation)
        )
    shape = Shape(rung.layers, rung.width, rung.context)
    return Bytes(texts["training"], texts["validation"], shape, rung.rows * WORKERS // workers, workers, skewed)
