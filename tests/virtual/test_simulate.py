"""`laconic.simulate` as a person calls it: networks as `plan` takes them, and results that plot."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic import Compute, Event, Level, Network

STEPS = 3


def train() -> float:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        loss = model(torch.ones(2, 8) + laconic.rank()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        laconic.log(loss=loss.item(), epoch=step // 2)
    return loss.item()


def test_a_rate_a_file_and_a_value_describe_the_same_network(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text('[network]\nlevels = [{bandwidth = "100Mbit", latency = "50us"}]\n')
    by_name, *others = (
        laconic.simulate(train, 2, network=network)
        for network in ("100Mbit", file, str(file), Network.flat(2, 1e8, 50e-6))
    )
    assert by_name.seconds > 0
    assert [other.seconds for other in others] == [by_name.seconds] * 3
    assert by_name.seconds > laconic.simulate(train, 2, network="1Gbit").seconds


def test_a_file_also_says_who_is_slow_and_what_happens(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text(
        '[network]\nlevels = [{bandwidth = "10Gbit"}, {workers = 2, bandwidth = "100Mbit", latency = "10ms"}]\n'
        '[compute]\nforward = "10ms"\nbackward = "20ms"\nslowness = [1, 1, 1, 3]\n'
    )
    sites = Network(4, (Level(1, 1e10), Level(2, 1e8, 0.01)))
    slow = Compute(0.01, 0.02, slowness=(1, 1, 1, 3))
    assert laconic.simulate(train, 4, file).seconds == laconic.simulate(train, 4, sites, slow).seconds
    assert laconic.simulate(train, 4, file, Compute()).seconds < STEPS * 0.09, "what is given as a value goes first"
    file.write_text(file.read_text() + '[[events]]\nat = "50ms"\nworker = 1\nwhat = "die"\n')
    with pytest.raises(laconic.WorkerLost, match="rank 1 died"):
        laconic.simulate(train, 4, file)
    with pytest.raises(laconic.WorkerLost, match="rank 2 died"):
        laconic.simulate(train, 4, sites, slow, events=[Event(0.05, 2, "die")])


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("100", 'write "100Mbit"'),
        ("fast", "no rate"),
        ("there_is_none.toml", "no network file"),
        (100, "a laconic.Network"),
        (Network.flat(3, 1e9), "for 3 workers"),
    ],
)
def test_what_is_no_network_is_refused_in_a_sentence(network: object, says: str) -> None:
    with pytest.raises(laconic.LaconicError, match=says):
        laconic.simulate(train, 2, network=network)  # type: ignore[arg-type]


def test_what_was_logged_is_there_as_curves() -> None:
    out = laconic.simulate(train, 2, "100Mbit", Compute(0.01, 0.02))
    assert [(curve.metric, curve.worker) for curve in out.curves()] == [
        *(("epoch", 0), ("epoch", 1), ("loss", 0), ("loss", 1))
    ]
    (curve,) = out.curves("loss", worker=1)
    assert curve.steps == (1, 2, 3) and curve.values[-1] == out.results[1]
    assert list(curve.seconds) == sorted(curve.seconds) and 0.03 < curve.seconds[0] < curve.seconds[-1] <= out.seconds
    assert curve.sent_bytes[-1] == out.workers[1].ledger.sent_bytes() > curve.sent_bytes[0] > 0
    with pytest.raises(laconic.LaconicError, match="logged: epoch, loss"):
        out.curves("accuracy")


def test_a_data_frame_where_pandas_is_installed() -> None:
    out = laconic.simulate(train, 2)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(laconic.LaconicError, match="needs pandas"):
            out.to_dataframe()
        return
    frame = out.to_dataframe()
    assert list(frame.columns) == ["worker", "step", "seconds", "sent_bytes", "metric", "value"]
    assert len(frame) == 2 * 2 * STEPS


def test_workers_are_collected_with_their_results() -> None:
    out = laconic.simulate(train, 2)
    worker = weakref.ref(out.workers[0])
    del out
    gc.collect()
    assert worker() is None


def test_what_was_there_before_is_frozen_as_long_as_a_simulation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also around one inside another."""
    monkeypatch.setattr(sys.modules["laconic.virtual.simulate"], "_frozen", "nothing")
    gc.unfreeze()
    try:
        inside = laconic.simulate(lambda: (laconic.simulate(train, 2), gc.get_freeze_count()), 1).results[0][1]
        assert inside > 0 and gc.get_freeze_count() == 0
    finally:
        gc.freeze()


def test_what_others_have_frozen_stays_so_and_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["laconic.virtual.simulate"], "_frozen", "nothing")
    before = gc.get_freeze_count()
    kept = [[number] for number in range(10_000)]
    laconic.simulate(train, 2)
    assert 0 < gc.get_freeze_count() <= before and len(kept) == 10_000
