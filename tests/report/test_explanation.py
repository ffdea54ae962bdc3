"""What `laconic explain` says of rules that do not exchange gradients in every step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laconic.errors import LaconicError, StrategyError
from laconic.report.explanation import as_json, explained, run
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime


@pytest.fixture
def profile(tmp_path: Path) -> str:
    tensors = tuple(TensorTime(f"layer{k}.weight", (1000,), "float32", 0.1) for k in range(2))
    path = tmp_path / "model.json"
    path.write_text(Profile(ModelTimes(tensors, Seconds(0.1), Seconds(0.2), Seconds(0.05)), 2).to_json())
    return str(path)


def test_a_sum_over_steps_is_exchanged_in_the_last_of_them(profile: str) -> None:
    always, fourth = (explained(text, profile, 2, "8kbit", "50us") for text in ("bsp", "accumulate(4)"))
    assert fourth.summary().startswith("one step in 4 exchanges, the others only compute: 2 tensors in 1 message")
    assert not always.summary().startswith("one step")
    assert fourth.trace == always.trace
    assert always.mean_step_seconds == pytest.approx(always.trace.period_seconds)
    assert fourth.mean_step_seconds == pytest.approx(0.35 + always.trace.exposed_seconds / 4)
    assert json.loads(as_json(fourth))["period"] == 4


@pytest.mark.parametrize(
    ("text", "when"), [("local(8)", "after every 8 steps"), ("dpsgd / none / gossip / ring", "after steps")]
)
def test_a_rule_that_sends_no_gradients_has_no_plan_of_messages(profile: str, text: str, when: str) -> None:
    with pytest.raises(StrategyError, match=f"sends no gradients during backward.* exchanges {when}.*laconic plan"):
        explained(text, profile, 2, "8kbit", "50us")


def test_buckets_are_shown_with_how_they_are_exchanged(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("bsp / sidco+ef", profile, 9, "8kbit", "50us", "cpu", 40, False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "tensor by tensor, in 1 of 1: sidco declares no exchange of whole buckets" in shown
    assert "0 of 1 buckets as a whole, 0 as CUDA graphs" in shown and "mean_of_sparse 2" in shown
    assert "from 7 workers on `bsp / cast_fp16 / allreduce` sends fewer bytes, and there are 9" in shown
    run("bsp / qsgd", profile, 2, "8kbit", "50us", "cpu", 40, True)
    document = json.loads(capsys.readouterr().out)
    (bucket,) = document["buckets"]
    assert bucket["tensors"] == ["layer0.weight", "layer1.weight"] and bucket["one_by_one"] is None
    assert bucket["fallbacks"] == {} and "two_hop" in document["gathered"]
    run("bsp / qsgd", profile, 2, "8kbit", "50us", "none", 40, True)
    assert json.loads(capsys.readouterr().out)["buckets"] == []


def test_a_device_that_is_not_here_is_refused(profile: str) -> None:
    with pytest.raises(LaconicError, match=r"--device tpu is not here: write .*cpu or none"):
        run("bsp / qsgd", profile, 2, "8kbit", "50us", "tpu", 40, True)
