"""Trainings as they were measured: what a step takes and is worth, and how a batch is split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.readers.pollux import read_application, read_workload
from laconic.cluster.training import Application, Curve, Training
from laconic.errors import ClusterError


def application() -> Application:
    """Two batches, two epochs; one, two and three hosts."""
    curves = {
        8: Curve(np.array([10.0, 20.0]), np.array([10, 20]), np.array([1.0, 1.0]), np.array([3.0, 7.0])),
        32: Curve(np.array([9.0, 21.0]), np.array([4, 7]), np.array([2.0, 1.0]), np.array([4.0, 1.0])),
    }
    placements = {
        (1,): np.array([[4.0, 1.0, 0.0], [8.0, 2.0, 0.0]]),
        (1, 2): np.array([[4.0, 3.0, 1.0], [8.0, 5.0, 1.0]]),
    }
    corners = [(h, w, m) for h in (1, 4) for w in (1, 8) for m in (2, 16)]
    scattered = np.array([[h, w, m, h + w + m, h] for h, w, m in corners], dtype=float)
    return Application("made", curves, placements, scattered, 2, 4, 8)


def test_a_batch_is_split_into_passes_that_fit() -> None:
    made = application()
    assert made.split(8, 1) == (8, 0)
    assert made.split(9, 1) == (5, 1)  # one worker needs two passes to measure noise
    assert made.split(32, 1) == (8, 3)
    assert made.split(32, 4) == (8, 0)
    assert made.split(20, 3) == (7, 0)
    assert made.split(32, 3) == (5, 1)  # 6 would be 36 samples, and 32 are the most


def test_steps_are_interpolated_between_measured_ones() -> None:
    made = application()
    assert made.step_time((1,), 6) == (1.5, 0.0)
    assert made.step_time((2, 1), 6) == made.step_time((1, 2), 6) == (4.0, 1.0)
    assert made.step_time((2, 2), 6) == pytest.approx((2 + 4 + 6, 2))
    assert made.step_seconds((1,), 32) == 4 * 2.0
    with pytest.raises(ClusterError, match="not measured with 9 samples"):
        made.step_time((1,), 9)
    with pytest.raises(ClusterError, match="batches of 8 to 32, not of 33"):
        made.steps_left(33, 0.0)


def test_progress_is_steps_times_what_they_are_worth() -> None:
    made = application()
    assert made.ends == [9.0, 20.0]
    training = Training(made, 8)
    one = Grant((Slot(0, 0),))
    cluster = Cluster.uniform(4, 4)
    assert training.rate(0.0, one, cluster, []) == (1 / 2.0, 9.0, 0.0, 1.0)
    assert training.rate(9.0, one, cluster, []).until == 20.0
    larger = Grant(one.slots, batch=32)
    assert training.rate(0.0, larger, cluster, []).speed == pytest.approx((4 + 2) / (4 / 4 + 2) / 8.0)
    middle = Grant(one.slots, batch=20)  # two passes of 7 and a third: 21 samples, 13/24 of the way
    sqr, var = 1 + 13 / 24, 3 + 13 / 24
    assert training.rate(0.0, middle, cluster, []).speed == pytest.approx(
        (var + sqr) / (var / (21 / 8) + sqr) / (3 * made.step_time((1,), 7).step)
    )


def test_steps_that_are_left_are_counted_from_the_end_of_the_epoch() -> None:
    made = application()
    assert made.steps_left(8, 0.0) == 10
    assert made.steps_left(20, 0.0) == pytest.approx(6.5)
    assert made.steps_left(8, 9.0) == 1


def test_a_workload_without_a_column_or_application_is_named(tmp_path: Path) -> None:
    path = tmp_path / "workload.csv"
    path.write_text("name,time\na,1\n")
    with pytest.raises(ClusterError, match="should have name, time, application"):
        read_workload(path, tmp_path)
    with pytest.raises(ClusterError, match="there are bert"):
        read_application(tmp_path / "lenet")
    with pytest.raises(ClusterError, match=r"placements\.csv is not there"):
        read_application(tmp_path / "bert")
