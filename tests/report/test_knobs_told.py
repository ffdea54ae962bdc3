"""Tables name the settings of a strategy where its text leaves them out."""

from __future__ import annotations

import pytest

from laconic.planner.candidates import compressions
from laconic.report.knobs_told import with_knobs
from laconic.strategy import Sentence, Strategy


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bsp / power_sgd+ef", "bsp / power_sgd(2)+error_feedback / allreduce"),
        ("bsp / power_sgd(4)+ef", "bsp / power_sgd(4)+error_feedback / allreduce"),
        ("bsp / topk+ef", "bsp / topk(0.01)+error_feedback / allreduce"),
        ("bsp / randk(scaled=false)+ef", "bsp / randk(0.01, scaled=false)+error_feedback / allreduce"),
        ("local / cast_fp16", "local_sgd(8) / cast_fp16 / allreduce"),
        ("bsp until step 5, then topk", "bsp / none / allreduce until step 5, then bsp / topk(0.01) / allreduce"),
        ("[bsp]@n > [local / topk]@site", "[bsp / none / allreduce]@n > [local_sgd(8) / topk(0.01) / allreduce]@site"),
    ],
)
def test_a_default_that_decides_how_gentle_a_word_is_is_told(text: str, told: str) -> None:
    assert with_knobs(str(Strategy.parse(text))) == told


def test_what_is_told_is_the_same_strategy() -> None:
    for chain in compressions():
        sentence = Sentence.of(chain)
        assert Strategy.parse(with_knobs(str(sentence))) == sentence


def test_what_another_library_does_is_left_as_it_is() -> None:
    assert with_knobs("torch:ddp16(bucket_cap_mb=25)") == "torch:ddp16(bucket_cap_mb=25)"
