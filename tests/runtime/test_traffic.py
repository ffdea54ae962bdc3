"""What a worker has sent, received and waited for, without reaching into its engine."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import ContractError
from laconic.launch.run_folder import forget_figures
from laconic.launch.summary import as_fields, missed_targets, read_traffic, summarise
from laconic.network.network_tree import Network
from laconic.runtime.traffic import Traffic
from laconic.virtual.compute import Compute

WEIGHTS = 1000
COMPUTE = Compute(forward_seconds=0.25, backward_seconds=0.5, step_seconds=0.25)


def trained(strategy: str, steps: int, finish: bool = False) -> Traffic:
    model: nn.Module = nn.Linear(WEIGHTS, 1, bias=False)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy)
    for step in range(steps):
        model(torch.ones(1, WEIGHTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        laconic.log(step=step)
    if finish:
        laconic.finish(model, optimizer)
    return laconic.traffic()


def test_a_worker_tells_what_it_sent_and_how_long_it_took() -> None:
    network = Network.flat(2, 8000.0)  # a weight takes four milliseconds
    done = laconic.simulate(lambda: trained("bsp / sequential", 5), 2, network, COMPUTE)
    for found, worker in zip(done.results, done.workers, strict=True):
        assert found.steps == 5
        assert (
            found.sent_bytes == worker.ledger.sent_bytes() == pytest.approx(found.payload_bytes + found.control_bytes)
        )
        assert found.payload_bytes >= 5 * 4 * WEIGHTS > 10 * found.control_bytes > 0
        assert found.received_bytes == worker.ledger.received_bytes()
        assert found.step_seconds == pytest.approx(5.0, rel=0.01), "one of computing, four of sending"
        assert found.seconds == pytest.approx(5 * 5.0, rel=0.01)
        assert found.waited_seconds == pytest.approx(worker.waited_seconds)


def test_nothing_is_told_before_anything_was_distributed() -> None:
    with pytest.raises(ContractError, match=r"call that first"):
        laconic.simulate(laconic.traffic, 2)


def test_a_metric_has_the_time_of_the_virtual_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from laconic.values.run_config import RunConfig

    config = RunConfig(folder=str(tmp_path), targets={"step": 2.0})
    monkeypatch.setenv(*next(iter(config.to_env().items())))
    laconic.simulate(lambda: trained("local(500)", 4), 2, None, COMPUTE)
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()]
    assert [line["seconds"] for line in lines if "step" in line] == [1.0, 2.0, 3.0, 4.0]
    assert "target step=2 reached after 3 s of virtual time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "steps", "finish", "warns"),
    [
        ("diloco", 3, False, "in 3 steps, and each worker trained alone. Call laconic.finish(model, optimizer) after"),
        ("one_shot", 3, False, "after training.\n"),
        ("diloco", 3, True, ""),
        ("diloco(2)", 3, False, ""),
        ("bsp", 3, False, ""),
        ("diloco", 0, False, ""),
    ],
)
def test_workers_that_never_met_are_told_so(
    strategy: str, steps: int, finish: bool, warns: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gc.collect()
    capsys.readouterr()
    laconic.simulate(lambda: trained(strategy, steps, finish), 2)
    gc.collect()
    told = capsys.readouterr().err
    assert told.count("never averaged") == bool(warns), told
    assert warns in told
    if strategy == "diloco" and warns:
        assert "or choose a period of at most that (it is 500)" in told


def test_a_single_worker_has_nobody_to_meet(capsys: pytest.CaptureFixture[str]) -> None:
    laconic.simulate(lambda: trained("diloco", 2), 1)
    gc.collect()
    assert "never averaged" not in capsys.readouterr().err


FIGURES = Traffic(
    steps=72,
    seconds=36.0,
    step_seconds=0.4,
    payload_bytes=3e6,
    control_bytes=1e6,
    received_bytes=4e6,
    waited_seconds=9.0,
)


def test_a_run_is_summed_up_in_a_sentence() -> None:
    assert summarise([FIGURES, FIGURES]) == (
        "72 steps in 36 s, the median 400 ms; each worker sent 4 MB (1 MB of it control), received 4 MB and waited 9 s "
        "for messages"
    )
    foreign = Traffic(72, 36.0, 0.4, math.nan, math.nan, math.nan, 0.0)
    assert summarise([foreign]) == "72 steps in 36 s, the median 400 ms; what another library sends is not counted"
    assert "NaN" not in json.dumps(as_fields([foreign]))
    assert "no optimizer step" in summarise([Traffic(0, 0.0, math.nan, 0.0, 0.0, 0.0, 0.0)])


def test_targets_that_were_missed_are_told_from_metrics_that_were_never_logged(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    lines = [{"seconds": 1.0, "loss": 2.5, "accuracy": 0.4}, {"seconds": 1.0, "reached": {"accuracy": 0.3}}]
    (tmp_path / "metrics" / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"sec')
    assert list(missed_targets(tmp_path, {"loss": 1.5, "accuracy": 0.3, "acurracy": 0.9})) == [
        "target loss=1.5 was not reached: it was 2.5 in the end",
        "target acurracy=0.9: acurracy was never logged, the script logs accuracy, loss; report it with "
        "laconic.log(acurracy=…)",
    ]
    assert "the script logs nothing" in next(missed_targets(tmp_path / "empty", {"loss": 1.5}))


def test_a_folder_that_is_used_again_forgets_the_figures_of_the_run_before(tmp_path: Path) -> None:
    for name in ("metrics/rank-0.jsonl", "metrics/rank-3.jsonl", "metrics/rank-7.jsonl", "traffic/rank-3.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    forget_figures(tmp_path, range(2, 4), 4)
    assert [path.name for path in tmp_path.glob("*/*")] == ["rank-0.jsonl"], "which belongs to another machine's ranks"
    assert read_traffic(tmp_path, range(4)) == []
