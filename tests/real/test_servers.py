"""Runs with servers, from the command line: interrupted, killed, on two machines, and on a shaped network."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.launching import LOST_SECONDS, START_SECONDS, Launched, names, processes_with

SCRIPT = Path(__file__).parent / "scripts" / "member.py"
TRAIN = SCRIPT.with_name("train.py")
STAY = json.dumps({"rank 0": ["stay"], "rank 1": ["stay"]})


def started(run: Launched, *logs: str) -> None:
    run.until(lambda: all((run.folder / "logs" / log).exists() for log in logs), START_SECONDS)
    run.until(lambda: all("{" in (run.folder / "logs" / log).read_text() for log in logs), START_SECONDS)


@pytest.mark.long
def test_an_interrupt_ends_workers_and_servers_within_seconds(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--servers", "2", "--", STAY, script=SCRIPT)
    started(run, "rank-0.log", "rank-1.log", "server-0.log", "server-1.log")
    os.kill(run.pid(1), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    assert run.exit_code(LOST_SECONDS) == 128 + signal.SIGINT
    assert not run.left_behind()
    assert run.result()["state"] == "interrupted"


@pytest.mark.long
def test_a_server_says_where_its_script_ends(launch: Callable[..., Launched]) -> None:
    run = launch(
        "--workers", "1", "--servers", "1", "--strategy", "asp / none / ps", "--", "--steps", "2", script=TRAIN
    )
    assert run.exit_code(START_SECONDS) == 0, run.console
    message = (run.folder / "logs" / "server-0.log").read_text()
    assert "server 0 serves from here, at laconic.distribute()" in message


@pytest.mark.long
def test_a_killed_launcher_takes_everybody_along(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--servers", "1", "--", STAY, script=SCRIPT)
    started(run, "rank-0.log", "rank-1.log", "server-0.log")
    run.process.kill()
    deadline = time.monotonic() + LOST_SECONDS
    while run.left_behind():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_two_machines_look_after_their_own_workers(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """Two launchers on the loopback: the first has the servers, and ends last."""
    plan = json.dumps({"rank 1": ["exit 3"], "rank 2": ["kill"]})
    port, keys = Launched.free_port(), str(tmp_path / "keys.json")
    options = ("--workers", "2", "--servers", "1", "--nodes", "2", "--keys", keys, "--restarts", "1")
    first = launch(*options, "--rendezvous", f"127.0.0.1:{port}", "--", plan, script=SCRIPT, name="first")
    started(first, "server-0.log")
    second = launch(*options, "--rendezvous", f"127.0.0.1:{port}", "--", plan, script=SCRIPT, name="second")
    assert second.exit_code(START_SECONDS) == 0, second.console
    assert first.exit_code(LOST_SECONDS) == 0, first.console
    assert names(first.console, 1) and names(second.console, 2)
    assert sorted(path.name for path in (second.folder / "logs").iterdir()) == ["rank-2.log", "rank-3.log"]
    record = json.loads((second.folder / "run-node-1.json").read_text())["result"]
    assert record["restarts"] == {"rank 2": 1} and record["state"] == "succeeded"
    assert not processes_with(str(tmp_path))
