"""The same faults in a script that trains: restarts go on from the last checkpoint, and end where a quiet run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.launching import COMMAND, LOST_SECONDS, SOURCE, START_SECONDS, Launched, names

SCRIPT = Path(__file__).parent / "scripts" / "train.py"


@pytest.mark.long
@pytest.mark.parametrize("strategy", [pytest.param("bsp", marks=pytest.mark.long), "bf16+ef"])
def test_a_restarted_run_ends_where_a_quiet_one_does(
    launch: Callable[..., Launched], tmp_path: Path, strategy: str
) -> None:
    def start(name: str, *options: str) -> Launched:
        files = ["--checkpoint", str(tmp_path / f"{name}-saved"), "--result", str(tmp_path / f"{name}.digest")]
        return launch("--workers", "3", "--strategy", strategy, *options, "--", *files, name=name, script=SCRIPT)

    quiet = start("quiet")
    assert quiet.exit_code(START_SECONDS) == 0
    disturbed = start("disturbed", "--restarts", "1")
    disturbed.until_step(25, ranks=3)
    os.kill(disturbed.pid(1), signal.SIGKILL)
    assert disturbed.exit_code(2 * START_SECONDS) == 0
    assert names(disturbed.console, 1) and "attempt 2 of 2" in disturbed.console
    resumed = [int(line.split()[-1]) for line in disturbed.log(0).splitlines() if line.startswith("begins at")]
    assert resumed[0] == 0 and resumed[1] >= 20
    assert (tmp_path / "disturbed.digest").read_text() == (tmp_path / "quiet.digest").read_text()


@pytest.mark.long
def test_a_killed_run_with_servers_is_continued(launch: Callable[..., Launched], tmp_path: Path) -> None:
    def start(*options: str) -> Launched:
        saved = ("--steps", "60", "--checkpoint", str(tmp_path / "saved"))
        strategy = ("--strategy", "asp / none / ps")
        return launch("--workers", "1", "--servers", "1", *strategy, *options, "--", *saved, script=SCRIPT)

    run = start()
    run.until_step(25, ranks=1)
    run.process.kill()
    run.process.wait()
    again = start("--resume")
    assert again.exit_code(START_SECONDS) == 0, again.console
    begins = [int(line.split()[-1]) for line in again.log(0).splitlines() if line.startswith("begins at")]
    assert begins[0] == 0 and begins[1] >= 20


@pytest.mark.long
def test_survivors_of_a_training_run_name_the_dead(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "3", "--", "--steps", "1000000", script=SCRIPT)
    run.until_step(25, ranks=3)
    os.kill(run.pid(2), signal.SIGKILL)
    assert run.exit_code(LOST_SECONDS) == 128 + signal.SIGKILL
    for message in (run.console, run.log(0), run.log(1)):
        assert names(message, 2), message[-2000:]


@pytest.mark.long
def test_ctrl_c_leaves_no_process_and_no_half_written_file(launch: Callable[..., Launched], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    run = launch(
        "--workers", "2", "--", "--steps", "1000000", "--every", "1", "--checkpoint", str(saved), script=SCRIPT
    )
    run.until_step(20, ranks=2)
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code(LOST_SECONDS) == 128 + signal.SIGINT
    assert not run.left_behind()
    assert not [path for path in saved.rglob("*") if path.suffix == ".tmp"]
    latest = saved / (saved / "latest").read_text()
    assert sorted(path.name for path in latest.iterdir()) == ["rank-0.pt", "rank-1.pt"]


@pytest.mark.long
def test_different_strategies_on_different_machines_are_named(launch: Callable[..., Launched]) -> None:
    """Two launchers that meet, as two machines would, with different words on the command line."""
    port = Launched.free_port()
    meeting = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--workers", "1"]
    runs = [
        launch(*meeting, "--strategy", words, name=f"machine-{k}", script=SCRIPT)
        for k, words in enumerate(["bsp", "bf16+ef"])
    ]
    for run in runs:
        assert run.exit_code(2 * START_SECONDS) != 0
    message = "".join(run.console for run in runs)
    assert "strategy is 'bsp / none / allreduce' on rank" in message or "strategy is 'bsp / cast_bf16" in message, (
        message
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@pytest.mark.long
def test_plain_torchrun_works_too(tmp_path: Path) -> None:
    digests = []
    for command in (
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        [*COMMAND, "--folder", str(tmp_path / "run"), "--workers", "2"],
    ):
        result = tmp_path / f"digest-{len(digests)}"
        done = subprocess.run(
            [*command, str(SCRIPT), "--steps", "20", "--result", str(result)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests.append(result.read_text())
    assert digests[0] == digests[1]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["workers"] == 2 and record["result"]["state"] == "succeeded"
    logged = (tmp_path / "run" / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert len(logged) == 20 and "loss" in json.loads(logged[0])


@pytest.mark.long
def test_a_dry_run_prices_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--dry-run", "--workers", "8", "--strategy", "{matrix: bf16+ef, else: none}", str(SCRIPT)],
        env={**environment(), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message = " ".join(done.stdout.split())
    assert "{matrix: bsp / cast_bf16+error_feedback / allreduce, else: bsp / none / allreduce}" in message
    matrices = 2 * (200 * 20 + 200 * 200 + 5 * 200)
    assert f"{matrices / 1000:.2f} KB" in message and "8 workers" in message
    assert "Nothing was started: --dry-run ends the script here, at laconic.distribute()." in message


@pytest.mark.long
def test_a_bad_strategy_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--folder", str(tmp_path / "run"), "--workers", "2", "--strategy", "bps", str(SCRIPT)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    refused = done.stderr.partition("write ")[2]
    assert done.returncode == 2 and "bsp" in refused and not (tmp_path / "run").exists()
