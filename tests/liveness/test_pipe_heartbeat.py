"""Heartbeats through a pipe: who falls silent is lost, who is starting or ending is given its time."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from laconic.liveness import pipe_heartbeat
from laconic.liveness.detection import START_SECONDS, Lost
from laconic.liveness.pipe_heartbeat import HeartbeatPipe

LIMIT_SECONDS = 10.0


@pytest.mark.parametrize(
    ("sent", "lost_after"),
    [(b"", START_SECONDS), (b"...", LIMIT_SECONDS), (b"...!", START_SECONDS)],
    ids=["starting", "frozen", "ending"],
)
def test_silence_is_judged_by_what_was_sent_before(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, lost_after: float
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pipe_heartbeat, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pipe = HeartbeatPipe("here", LIMIT_SECONDS)
    os.write(pipe.writer, sent)
    pipe.close_writer()
    lost: Lost | None = None
    while lost is None:
        clock.now += 0.5
        lost = pipe.look()
    pipe.close()
    assert lost_after - 2 <= clock.now <= lost_after + 2
