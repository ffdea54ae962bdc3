"""With a study's conditions the planner comes to the study's verdict where its figures are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.compression_study import LOW_RANK, Conditions, gains

from bench import compression_study

STUDY = Conditions(measured=True, gathered=True, encoders=1.0, after_backward=True, largest_batch=True)
STEPS = {64: 0.2275}  # seconds of ResNet-50 on a V100 (Narayanan et al., OSDI 2020)


@pytest.mark.long
def test_slow_encoders_are_why_compression_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression_study, "BATCHES", {"ResNet-50": (64,)})
    monkeypatch.setattr(compression_study, "GPUS", (8, 64))
    assert max(gains(STUDY, STEPS).values()) < 1.03
    ours = gains(replace(STUDY, encoders=0.0), STEPS)
    assert all(ours["ResNet-50", 64, 64, method] > 1.03 for method in LOW_RANK)


@pytest.mark.long
def test_low_rank_pays_below_about_the_bandwidth_that_the_study_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression_study, "BATCHES", {"ResNet-50": (64,)})
    monkeypatch.setattr(compression_study, "GPUS", (64,))
    slow, fast = (gains(STUDY, STEPS, rate)["ResNet-50", 64, 64, LOW_RANK[0]] for rate in ("7gbit", "10gbit"))
    assert slow > 1.03 > 1 > fast
