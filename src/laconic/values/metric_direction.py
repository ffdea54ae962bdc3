"""Whether a smaller value of a metric is better, and when a target is reached: one rule for runs, comparisons, tuning.

The metric's name decides first, because that holds from the first value on: a loss that begins below its target has
reached it at once, and one that rises past it has not. Where the name does not tell, the metric's course decides.
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
"""Words long enough to be recognised without a separator before them, as in `valloss`."""


def falls_by_name(metric: str) -> bool | None:
    """Return whether less is better, if the name tells; of several words that do, the last one counts
    (`accuracy_loss`)."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", metric).lower()
    words = re.findall(r"[a-z]+[0-9]*", separated)
    for word in reversed(words):
        for form in (word, word.rstrip("0123456789")):
            if form in _FALLING or form in _RISING:
                return form in _FALLING
    together = "".join(words)
    ending = next((ending for ending in _ENDINGS if together.endswith(ending)), None)
    return None if ending is None else ending in _FALLING


def falls_by_course(metric: str, values: Iterable[float]) -> bool | None:
    """Return whether less is better, by name or by the first and last values of a run that learned; None when neither
    tells."""
    named = falls_by_name(metric)
    if named is not None:
        return named
    finite = [value for value in values if math.isfinite(value)]
    return finite[-1] < finite[0] if finite and finite[-1] != finite[0] else None


def falls_towards(metric: str, values: Iterable[float], target: float) -> bool:
    """Return whether less is better, by name or because the first finite value lies above the target."""
    named = falls_by_name(metric)
    return next((value > target for value in values if math.isfinite(value)), True) if named is None else named


def as_good(value: float, target: float, falls: bool) -> bool:
    """Return whether a value has reached the target; a value that is not finite has not."""
    return math.isfinite(value) and (value <= target if falls else value >= target)
