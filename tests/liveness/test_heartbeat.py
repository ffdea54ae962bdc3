"""What a rank concludes from a silent store: nothing before it has connected, a loss afterwards."""

from __future__ import annotations

import pytest

from laconic.errors import ContractError
from laconic.liveness.detection import START_SECONDS
from laconic.liveness.heartbeat import Heartbeat, _describe_error
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


def test_an_error_is_named_by_whole_words() -> None:
    """Before, the message was cut in mid-word after 200 characters."""
    sentence = "the strategy names words that nobody knows, " * 8
    refused = _describe_error(ContractError(sentence + "so write others."), 1, "here")
    assert refused.final and refused.cause.endswith("so write others"), "a refusal is short, and given in full"
    other = _describe_error(ValueError(sentence), 1, "here").cause
    assert len(other) < 250 and other.endswith(" …")
    assert other.split()[-2] in sentence.split()
