"""The min-max partition of a chain against every partition."""

from __future__ import annotations

import random

import numpy as np
import pytest

from laconic.parallel.planners.chain import MinMax, balanced, sums
from tests.parallel.planners.chains import compositions


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("units", "stages"), [(1, 1), (5, 2), (7, 3), (8, 8), (9, 4)])
def test_no_other_cut_has_a_faster_slowest_stage(seed: int, units: int, stages: int) -> None:
    draw = random.Random(seed)
    times = [draw.uniform(0.1, 3) for _ in range(units)]
    spans = balanced(times, stages)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == units
    assert len(spans) == stages

    def slowest(lengths: tuple[int, ...]) -> float:
        ends = np.cumsum(lengths)
        return max(sum(times[end - length : end]) for length, end in zip(lengths, ends, strict=True))

    found = max(sum(times[span.start : span.stop]) for span in spans)
    assert found == pytest.approx(min(map(slowest, compositions(units, stages))), rel=1e-12)


def test_stages_that_cannot_be_are_never_part_of_a_partition() -> None:
    times = sums([1.0, 1.0, 1.0, 1.0])
    allowed = np.where(times <= 2, times, np.inf)
    table = MinMax(4, 3, lambda first, width: allowed if first else np.where(times <= 1, times, np.inf))
    assert table.bottleneck(1, 0, 4) == np.inf
    assert table.spans(1, 0, 4) == ()
    assert table.spans(2, 0, 4) == ()
    assert [span.stop - span.start for span in table.spans(3, 0, 4)] in ([1, 2, 1], [1, 1, 2])
