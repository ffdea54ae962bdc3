"""Whether less of a metric is better, and when it is as good as asked: one rule for runs, comparisons and tuning.

A metric's name says it best, because that holds from the first value on: a loss that begins below its target has
reached it at once, and one that climbs past it has not. Where the name says nothing, the way it went must do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_FALLING = frozenset(
    [
        "loss",
        "losses",
        "error",
        "errors",
        "err",
        "perplexity",
        "ppl",
        "nats",
        "bpc",
        "bpb",
        "nll",
        "crossentropy",
        "mse",
        "rmse",
        "mae",
        "wer",
        "cer",
        "fid",
        "cost",
        "regret",
    ]
)
_RISING = frozenset(
    [
        "accuracy",
        "acc",
        "score",
        "f1",
        "auc",
        "auroc",
        "precision",
        "recall",
        "bleu",
        "rouge",
        "iou",
        "map",
        "dice",
        "reward",
        "psnr",
        "ssim",
        "correct",
    ]
)
_ENDINGS = ("loss", "error", "perplexity", "crossentropy", "accuracy", "score")
"""Words long enough to be seen without a separator before them: `valloss`."""


def falls_by_name(metric: str) -> bool | None:
    """Whether less is better, if the name says so; of several words that do, the last one counts (`accuracy_loss`)."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", metric).lower()
    words = re.findall(r"[a-z]+[0-9]*", apart)
    for word in reversed(words):
        for form in (word, word.rstrip("0123456789")):
            if form in _FALLING or form in _RISING:
                return form in _FALLING
    together = "".join(words)
    ending = next((ending for ending in _ENDINGS if together.endswith(ending)), None)
    return None if ending is None else ending in _FALLING


def falls_by_course(metric: str, values: Iterable[float]) -> bool | None:
    """Whether less is better: by name, or by how a run that learned went. None when neither says it."""
    named = falls_by_name(metric)
    if named is not None:
        return named
    finite = [value for value in values if math.isfinite(value)]
    return finite[-1] < finite[0] if finite and finite[-1] != finite[0] else None


def falls_towards(metric: str, values: Iterable[float], target: float) -> bool:
    """Whether less is better: by name, or because the first number lies above the target."""
    named = falls_by_name(metric)
    return next((value > target for value in values if math.isfinite(value)), True) if named is None else named


def as_good(value: float, target: float, falls: bool) -> bool:
    """Whether a value has reached the target; what is not finite has reached nothing."""
    return math.isfinite(value) and (value <= target if falls else value >= target)
