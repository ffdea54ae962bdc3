"""Timelines: what is written can be read, and drawn."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.real.recording import Recording, merge, rank_file
from laconic.runtime.timeline import Recorder, Span, Timeline, TimelineError

moments = st.floats(0, 1e4, allow_nan=False)
spans = st.builds(
    lambda worker, track, begin, length, step: Span(worker, track, "it", begin, begin + length, {"step": step}),
    st.integers(0, 3),
    st.sampled_from(["compute", "waiting", "communication"]),
    moments,
    st.floats(0, 5),
    st.integers(0, 9),
)


def rows(document: dict[str, Any]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Each thread's slices as a viewer sees them, in microseconds."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    return {key: sorted(row) for key, row in found.items()}


@pytest.mark.long
@given(st.lists(spans, max_size=30))
def test_any_spans_come_back_and_none_are_drawn_over_each_other(tmp_path_factory: Any, given_spans: list[Span]) -> None:
    path = tmp_path_factory.mktemp("timeline") / "trace.json"
    Timeline(given_spans).write(path)
    read = Timeline.read(path)

    def key(span: Span) -> tuple[Any, ...]:
        begin, end = round(span.begin_seconds * 1e9), round(span.end_seconds * 1e9)
        return span.worker, span.track, span.name, begin, end, tuple(span.arguments.items())

    assert sorted(map(key, read.spans)) == sorted(map(key, given_spans))
    for row in rows(json.loads(path.read_text())).values():
        assert all(begin >= end - 1e-4 for (_, end), (begin, _) in pairwise(row))


def test_workers_and_tracks_are_named_and_times_are_microseconds(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(3, "compute", "forward", 1.0, 1.5, step=0)
    timeline.add(3, "communication", "first", 1.0, 2.0, bytes=8)
    timeline.add(3, "communication", "beside it", 1.5, 2.5, bytes=8)
    timeline.add(3, "communication", "after the first", 2.0, 3.0, bytes=8)
    timeline.write(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    named = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert named == {
        ("process_name", "worker 3"),
        ("thread_name", "compute"),
        ("thread_name", "communication"),
        ("thread_name", "communication 2"),
    }
    assert document["displayTimeUnit"] == "ms"
    forward = next(e for e in events if e["name"] == "forward")
    assert (forward["pid"], forward["ts"], forward["dur"], forward["args"]) == (3, 1e6, 5e5, {"step": 0})
    assert [s.name for s in Timeline.read(tmp_path / "trace.json").of(3, "communication")] == [
        "first",
        "beside it",
        "after the first",
    ]


@pytest.mark.parametrize(("begin", "end"), [(2.0, 1.0), (math.nan, 1.0)])
def test_a_span_that_ends_before_it_begins_is_refused(begin: float, end: float) -> None:
    with pytest.raises(TimelineError, match="worker 0's forward ends at"):
        Timeline().add(0, "compute", "forward", begin, end)


def test_files_that_are_no_timeline_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline = Timeline([Span(0, "compute", "a", 0.0, 2.0), Span(0, "compute", "b", 2.0, 3.0)])
    timeline.write(path)
    good = path.read_text()
    for old, new, sentence in [
        ('"ts": 2000000.0', '"ts": 1000000.0', "begins before the last span of its lane"),
        ('"dur": 1000000.0', '"dur": -1.0', "before it begins"),
        ('"traceEvents"', '"events"', "no timeline"),
        ("}", "", "no timeline"),
    ]:
        assert old in good
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(TimelineError, match=sentence):
            Timeline.read(path)
    with pytest.raises(TimelineError, match="cannot be read"):
        Timeline.read(tmp_path / "none.json")


def test_processes_line_up_by_the_clock_on_the_wall() -> None:
    early, late = Timeline(began_seconds=100.0), Timeline(began_seconds=101.5)
    early.add(0, "compute", "forward", 1.0, 2.0)
    late.add(1, "compute", "forward", 0.25, 0.5)
    merged = Timeline.merge([late, early])
    assert merged.began_seconds == 100.0 and merged.workers == [0, 1]
    assert [(s.begin_seconds, s.end_seconds) for s in merged.of(1, "compute")] == [(1.75, 2.0)]


def test_steps_are_counted_and_a_message_belongs_to_the_step_in_which_it_left() -> None:
    timeline = Timeline()
    recorder = Recorder(timeline, 0)
    message = recorder.message("all_reduce", 400, 100)
    recorder.computed("step", None, 0.0, 1.0)
    recorder.computed("forward", None, 1.0, 2.0)
    recorder.computed("backward", "0.weight", 2.0, 2.0)  # took no time
    recorder.transferred(message, 0.5, 1.5)
    assert [(s.name, s.arguments["step"]) for s in timeline.spans] == [
        ("step", 0),
        ("forward", 1),
        ("all_reduce 400 B", 0),
    ]


def test_computing_and_waiting_of_a_process_fill_its_time_and_a_message_lands_once() -> None:
    recording = Recording(0)
    operation = recording.start_operation("all_reduce", None)
    recording.computed("forward", None)
    now = time.perf_counter()
    for later in (1, 3):
        recording.waited("all_reduce", now + later, now + later + 1)
        operation.complete()
    done = [s for s in recording.timeline.spans if s.track != "communication"]
    assert [s.name for s in done] == ["forward", "other", "all_reduce", "other", "all_reduce"]
    assert all(a.end_seconds == b.begin_seconds for a, b in pairwise(done))
    assert len(recording.timeline.spans) == len(done) + 1


def test_a_rank_that_left_no_timeline_is_named(tmp_path: Path) -> None:
    assert "no timeline: ranks 0 and 1 left none" in merge(tmp_path, [0, 1], 0)
    timeline = Timeline()
    timeline.add(1, "compute", "forward", 0.0, 1.0)
    timeline.write(rank_file(tmp_path, 1))
    output = merge(tmp_path, [0, 1], 0)
    assert "ui.perfetto.dev" in output and "rank 0 left none" in output
    assert Timeline.read(tmp_path / "trace.json").workers == [1]
