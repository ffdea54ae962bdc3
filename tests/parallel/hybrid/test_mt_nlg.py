"""Megatron-Turing NLG: its published rates, and its scaling with replicas."""

from __future__ import annotations

import pytest

from laconic.errors import LaconicError
from laconic.parallel.hybrid.mt_nlg import BATCH, mt_nlg, scaled_seconds
from laconic.parallel.hybrid.published import MT_NLG, MT_NLG_SECONDS


@pytest.mark.technique("mt_nlg", check=1)
def test_operations_over_time_give_the_published_rates() -> None:
    expected = {8: 125.7, 10: 120.4, 12: 113.5}
    for replicas, (seconds, published) in MT_NLG_SECONDS.items():
        rate = MT_NLG.operations(BATCH) / (seconds * mt_nlg(replicas).gpus) / 1e12
        assert rate == pytest.approx(expected[replicas], abs=0.06)
        assert rate == pytest.approx(published, abs=0.7)


@pytest.mark.technique("mt_nlg", check=2)
@pytest.mark.evidence("mt_nlg")
def test_the_first_time_predicts_the_others_by_microbatches_and_stages() -> None:
    first = MT_NLG_SECONDS[8][0]
    predicted = {replicas: scaled_seconds(first, 8, replicas) for replicas in (10, 12)}
    assert predicted[10] == pytest.approx(49.6, abs=0.05) and predicted[12] == pytest.approx(42.6, abs=0.05)
    for replicas, seconds in predicted.items():
        assert seconds == pytest.approx(MT_NLG_SECONDS[replicas][0], rel=0.05)


def test_a_replica_is_eight_gpus_by_thirty_five_stages() -> None:
    layout = mt_nlg(12)
    assert (layout.tensor, layout.pipeline, layout.gpus, layout.microbatch) == (8, 35, 3360, 1)
    assert BATCH // (layout.data * layout.microbatch) == 160
    with pytest.raises(LaconicError, match="do not divide"):
        mt_nlg(7)
