"""What a rank concludes from a silent store: nothing before it has connected, a loss afterwards."""

from __future__ import annotations

import pytest

from laconic.liveness.detection import START_SECONDS
from laconic.liveness.heartbeat import Heartbeat
from laconic.liveness.store_thread import StoreAddress
from laconic.values.run_config import VARIABLE


@pytest.fixture
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    return Heartbeat(StoreAddress("127.0.0.1", 1, "test", 4), rank=1, limit_seconds=10, folder=None)  # not started


def test_a_slow_connection_is_no_loss(heartbeat: Heartbeat) -> None:
    assert heartbeat._judge_store(silent_seconds=60) is None
    lost = heartbeat._judge_store(silent_seconds=START_SECONDS + 1)
    assert lost is not None and "has not answered" in lost.cause


def test_a_store_that_falls_silent_is_a_loss(heartbeat: Heartbeat) -> None:
    heartbeat._watch.connected = True
    assert heartbeat._judge_store(silent_seconds=5) is None
    lost = heartbeat._judge_store(silent_seconds=9)
    assert lost is not None and lost.ranks == (0,), "under another launcher rank 0 hosts the store"
