"""Profiles as values: what they refuse, and that a file gives back what was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.profile.cache import ProfileKey
from laconic.values.profile import (
    CodecTimes,
    LinkTimes,
    ModelTimes,
    OperationTimes,
    Point,
    Profile,
    Seconds,
    TensorTime,
)


def profile() -> Profile:
    tensors = (TensorTime("head.weight", (4, 3), "float32", 0.25), TensorTime("body.bias", (3,), "bfloat16", 0.5))
    points = (Point(96.0, 0.004, 0.003, 0.5), Point(1e6, 0.104, 0.103))
    links = LinkTimes(1e8, 0.025, (OperationTimes("all_reduce", "float32", points, 0.004, 1e-7),))
    model = ModelTimes(tensors, Seconds(0.5, 0.4, 0.6, 12), Seconds(0.75), Seconds(0.125))
    return Profile(model, 4, {"cpu": "a", "cores": 2}, links, (CodecTimes("cast_fp16", 1e-5, 1e-9, 2e-5, 2e-9),))


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(profile().to_json())
    assert Profile.read(tmp_path / "p.json") == profile()


def test_a_published_profile_may_be_short() -> None:
    """Layer times from a paper: plain numbers, and only what is known."""
    tensors = [{"name": "w", "shape": [2, 2], "backward_seconds": 0.02}]
    model = {"tensors": tensors, "forward": 0.01, "backward": 0.02, "step": 0}
    read = Profile.from_json(json.dumps({"laconic_profile": 1, "model": model}))
    assert read.model.seconds == pytest.approx(0.03) and read.links is None and read.codecs == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "is no profile"),
        ("{", "is no profile"),
        ('{"laconic_profile": 99}', "version 99"),
        ('{"laconic_profile": 1}', "is no profile"),
    ],
)
def test_other_files_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(LaconicError, match=sentence):
        Profile.from_json(text)


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(LaconicError, match="there is no profile"):
        Profile.read("nowhere.json")
    with pytest.raises(LaconicError, match="not negative"):
        Seconds(-1.0)
    with pytest.raises(LaconicError, match="each once"):
        replace(profile().model, tensors=())
    with pytest.raises(LaconicError, match="may be shared"):
        Point(1.0, 0.1, 0.2)
    with pytest.raises(LaconicError, match="ascend"):
        OperationTimes("all_reduce", "float32", (Point(2.0, 1, 1), Point(2.0, 1, 1)), 0, 0)
    with pytest.raises(LaconicError, match="at least one worker"):
        replace(profile(), workers=0)


@given(st.floats(0, 1e8))
def test_collectives_are_priced_between_and_beyond_the_points(wire_bytes: float) -> None:
    links = profile().links
    times = None if links is None else links.find("all_reduce", "int8")
    assert times is not None
    at = times.at(wire_bytes)
    below, above = times.at(wire_bytes * 0.9), times.at(wire_bytes * 1.1)
    assert below.alone_seconds <= at.alone_seconds <= above.alone_seconds
    assert at.alone_seconds - at.shared_seconds == pytest.approx(0.001) and 0.5 <= at.pace <= 1
    if wire_bytes > 1e6:
        assert at.alone_seconds == pytest.approx(0.104 + (wire_bytes - 1e6) * 1e-7)


def test_the_cache_knows_scripts_by_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = tmp_path / "train.py"
    script.write_text("a")
    first = ProfileKey(script, ("--lr", "1"), 4)
    place = first.path
    assert place.is_relative_to(tmp_path / "cache") and place.name.startswith("train-")
    others = [
        replace(first, workers=8),
        replace(first, arguments=()),
        replace(first, bits_per_second=(1e8,)),
        replace(first, delay_seconds=0.1),
    ]
    assert len({place, *(other.path for other in others)}) == 5
    copy = tmp_path / "sub" / "train.py"
    copy.parent.mkdir()
    copy.write_text("a")
    assert replace(first, script=copy).path == place
    script.write_text("b")
    assert first.path != place
