"""Whether less of a metric is better."""

from __future__ import annotations

import math

import pytest

from laconic.values.metric_direction import as_good, falls_by_course, falls_by_name, falls_towards


@pytest.mark.parametrize(
    ("metric", "falls"),
    [
        *(
            (name, True)
            for name in ("loss", "val_loss", "loss_train", "testloss", "valLoss", "error_rate", "nats", "MSE")
        ),
        *((name, True) for name in ("cross_entropy", "accuracy_loss", "top1_error", "val/perplexity")),
        *((name, False) for name in ("accuracy", "acc", "acc@5", "top1acc", "val_f1", "f1", "AUC", "mAP", "zscore")),
        *((name, None) for name in ("something", "lossy_steps", "accelerate", "samples_per_second", "")),
    ],
)
def test_names_say_it_as_words_or_endings(metric: str, falls: bool | None) -> None:
    assert falls_by_name(metric) is falls


def test_where_the_name_says_nothing_the_way_it_went_does() -> None:
    assert falls_towards("x", [math.nan, 3.0], 2.0)
    assert not falls_towards("x", [1.0], 2.0)
    assert falls_towards("loss", [1.0], 2.0)
    assert falls_by_course("x", [3.0, math.inf, 2.0, math.nan]) is True
    assert falls_by_course("x", [2.0, 3.0]) is False
    assert falls_by_course("x", [math.nan, 3.0]) is falls_by_course("x", []) is None
    assert falls_by_course("accuracy", []) is False


def test_what_is_not_finite_has_reached_nothing() -> None:
    assert as_good(2.0, 2.0, falls=True) and as_good(2.0, 2.0, falls=False)
    assert not as_good(math.inf, 2.0, falls=False) and not as_good(math.nan, 2.0, falls=True)
