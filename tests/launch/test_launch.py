"""What is asked for is checked before anything starts; what the workers are given, and where things are written."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.errors import LaconicError, StrategyError
from laconic.launch import profiling
from laconic.launch.launch import _Run
from laconic.launch.log_follower import LogFollower
from laconic.launch.request import LaunchError, Request, read_slowness, read_stragglers
from laconic.launch.run_folder import RunRecord, choose_folder, first_life
from laconic.liveness.detection import EXIT_REFUSED
from laconic.values.run_config import RunConfig, attempt_prefix

SOURCE = Path(__file__).parents[2] / "src"


def laconic(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-m", "laconic", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that shows what it was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.py").write_text(
        "import json, os, sys\n"
        "names = ('RANK', 'WORLD_SIZE', 'LACONIC_RUN', 'OMP_NUM_THREADS', 'GLOO_SOCKET_IFNAME')\n"
        "print(json.dumps([sys.argv, sys.path[0], {name: os.environ.get(name) for name in names}]))\n"
    )
    return "show.py"


def shown(output: str) -> tuple[list[str], str, dict[str, str]]:
    return tuple(json.loads(next(line for line in output.splitlines() if line.startswith("["))))  # type: ignore


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"command": ()}, "nothing to run"),
        ({"command": ("missing.py",)}, "'missing.py' does not exist"),
        ({"command": (".",)}, "'.' is a folder, not a script"),
        ({"command": ("no.such.module",), "module": True}, "no module named 'no.such.module'"),
        ({"workers": 0}, "--workers 0"),
        ({"nodes": 0}, "--nodes 0"),
        ({"restarts": -1}, "--restarts -1"),
        ({"threads": 0}, "--threads 0"),
        ({"heartbeat_seconds": 0.1}, "--heartbeat 0.1"),
        ({"heartbeat_seconds": float("nan")}, "--heartbeat nan"),
        ({"timeout_seconds": 0.0}, "--timeout 0"),
        ({"targets": {"loss": float("inf")}}, "--target loss=inf"),
        ({"nodes": 2}, "--rendezvous HOST:PORT"),
        ({"nodes": 2, "rendezvous": "10.0.0.1"}, "'10.0.0.1' is not HOST:PORT"),
        ({"rendezvous": "10.0.0.1:70000"}, "is not HOST:PORT"),
        ({"servers": -1}, "--servers -1"),
        ({"servers": 1, "server_restarts": -1}, "--server-restarts -1"),
        ({"servers": 1, "colocate": True}, "add --servers and --net"),
        ({"servers": 1, "resume": True}, "add --servers and the --folder"),
        ({"servers": 1, "resume": True, "folder": "nowhere"}, "there is nothing to continue"),
        ({"keys": "keys.json"}, "add --servers"),
        ({"servers": 1, "nodes": 2, "rendezvous": "10.0.0.1:29400"}, "--keys FILE"),
        ({"slowness": (1.0, 0.5)}, "from 1 on"),
        ({"stragglers": (0.5, 0.5)}, "from 1 on"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(script: str, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(LaunchError) as refused:
        Request(**{"command": (script,), **wrong})  # type: ignore[arg-type]
    assert says in str(refused.value)


def test_who_is_slower_is_read_as_people_write_it(script: str) -> None:
    assert read_slowness("1,1, 5") == (1.0, 1.0, 5.0) and read_stragglers("0.2x3") == (0.2, 3.0)
    for read, text, says in ((read_slowness, "1,fast", "1,1,1,5"), (read_stragglers, "0.2", "PROBABILITYxFACTOR")):
        with pytest.raises(LaunchError, match=says):
            read(text)
    with pytest.raises(LaconicError, match="slowness is positive"):
        Request(command=(script,), slowness=(1.0, 0.0), engine="virtual")
    with pytest.raises(LaconicError, match="probability of 0 to 1"):
        Request(command=(script,), stragglers=(2.0, 3.0))


def test_a_bad_strategy_is_refused_before_anything_starts(script: str) -> None:
    refused = CliRunner().invoke(app, ["run", "--strategy", "no such word at all", script])
    assert isinstance(refused.exception, StrategyError)
    assert not Path("runs").exists()


@pytest.mark.parametrize("text", ["bsp", "auto", "torch:ddp", "{bias: bsp / ps, else: asp / ps}"])
def test_servers_for_a_strategy_without_any_are_refused_before_anything_starts(script: str, text: str) -> None:
    """Before, processes started first, and each server was started eleven times."""
    refused = CliRunner().invoke(app, ["run", "--servers", "1", "--strategy", text, script])
    assert isinstance(refused.exception, LaconicError) and "server" in str(refused.exception)
    assert not Path("runs").exists()


def test_a_name_that_only_means_this_machine_cannot_be_a_meeting_point(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laconic.launch.request.resolves_to_loopback", lambda host: True)
    with pytest.raises(LaunchError, match="give the machine's address"):
        Request(command=(script,), nodes=2, rendezvous="myself:29400")
    assert Request(command=(script,), nodes=2, rendezvous="127.0.0.1:29400").endpoint == ("127.0.0.1", 29400)


def test_the_configuration_for_the_workers_is_read_back_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LACONIC_RUN", raising=False)
    assert RunConfig.current() == RunConfig()
    config = RunConfig(strategy="bsp", folder="/x", heartbeat_seconds=3, workers=8, targets={"loss": 1.6})
    for name, value in config.to_env().items():
        monkeypatch.setenv(name, value)
    assert RunConfig.current() == config
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert config.heartbeat_prefix() == attempt_prefix(2)
    monkeypatch.setenv("LACONIC_RUN", '{"colour": "red"}')
    with pytest.raises(LaconicError, match="unset it"):
        RunConfig.current()


def test_run_folders_are_never_shared_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {choose_folder(None, "train") for _ in range(5)}
    assert len(folders) == 5 and all((folder / "logs").is_dir() for folder in folders)
    assert choose_folder("mine", "train") == choose_folder("mine", "train") == tmp_path / "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(LaconicError, match="cannot be made"):
        choose_folder("file", "train")


def test_a_run_that_continues_another_begins_after_its_lives(tmp_path: Path) -> None:
    first = [first_life(tmp_path, resume) for resume in (False, True, True, False)]
    assert first[0] == first[3] == 0 and first[2] > first[1] > 1000


def test_the_record_is_whole_at_every_moment(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, nodes=1, workers=2)
    record.begin(0)
    begun = json.loads((tmp_path / "run.json").read_text())
    assert begun["workers"] == 2 and "result" not in begun and begun["versions"]["torch"]
    record.end("succeeded", 0, attempts=1)
    assert json.loads((tmp_path / "run.json").read_text())["result"]["state"] == "succeeded"
    RunRecord(tmp_path, nodes=2).begin(1)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "run-node-1.json"}


@contextmanager
def full_disk(largest_file: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes; writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(LaconicError, match="cannot be made or written to: File too large"):
        choose_folder(str(tmp_path / "run"), "train")
    assert not any((tmp_path / "run" / "logs").iterdir())


def test_a_disk_that_fills_up_during_the_run_leaves_the_record_whole(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the launcher ended with a traceback."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    run = _Run(Request(command=(script,)), choose_folder("run", "train"))
    run._record.begin(0)
    monkeypatch.setattr(run, "_run_manager", run._wake.set)
    monkeypatch.setattr(run, "_report", lambda: 0)
    with full_disk():
        code = run.execute()
    assert code == 1 and "run.json cannot be written (File too large)" in capsys.readouterr().err
    assert "result" not in json.loads((tmp_path / "run" / "run.json").read_text())
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_file()] == ["run.json"]


def test_the_console_gets_the_log_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", console)
    log = tmp_path / "rank-0.log"
    log.write_text("from an attempt before\n")
    follow = LogFollower(log)
    follow.start()
    with log.open("ab") as file:
        file.write(b"10%\r20%\r\xff\n")
        file.flush()
        deadline = time.monotonic() + 10
        while not console.buffer.getvalue():  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
        file.write(b"the end, without a newline")
    follow.stop()
    assert console.buffer.getvalue() == b"10%\r20%\r\xff\nthe end, without a newline"  # type: ignore[attr-defined]


@pytest.mark.long
def test_the_scripts_own_arguments_pass_untouched(script: str, tmp_path: Path) -> None:
    own = ["--workers", "9", "--", "-m", "$HOME $$ ${local_rank}", "a b", "--help"]
    done = laconic("run", "--folder", "out", "--threads", "2", script, *own, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    arguments, path, environment = shown(done.stdout)
    assert arguments == [script, *own]
    assert path == str(tmp_path)
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["OMP_NUM_THREADS"]) == ("0", "1", "2")
    assert environment["GLOO_SOCKET_IFNAME"]
    assert json.loads(environment["LACONIC_RUN"])["folder"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "logs" / "rank-0.log").read_text() == done.stdout
    assert json.loads((tmp_path / "out" / "run.json").read_text())["result"]["exit_code"] == 0


def test_a_module_runs_as_python_would_run_it_and_a_dry_run_is_one_lone_process(script: str, tmp_path: Path) -> None:
    target = ("--target", "loss=1.6", "--target", "accuracy=0.9")
    done = laconic("run", "--workers", "4", "--dry-run", *target, "-m", "show", "--deep", folder=tmp_path)
    assert done.returncode == EXIT_REFUSED, done.stderr
    assert done.stderr.startswith("laconic: the script does not call laconic.distribute()"), done.stderr
    arguments, path, environment = shown(done.stdout)
    assert arguments[1:] == ["--deep"] and path == str(tmp_path)
    assert environment["RANK"] == "0" and environment["WORLD_SIZE"] is None
    message = json.loads(environment["LACONIC_RUN"])
    assert message["dry_run"] and message["workers"] == 4 and message["targets"] == {"loss": 1.6, "accuracy": 0.9}
    assert not (tmp_path / "runs").exists()


def test_a_refusal_is_one_line_and_exit_code_2(script: str, tmp_path: Path) -> None:
    done = laconic("run", "--target", "loss", script, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "laconic: --target 'loss' is not NAME=VALUE: write, for example, --target loss=1.6."


@pytest.mark.long
def test_the_doctor_reports_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    done = laconic("doctor", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert all(findings[name]["ok"] for name in ("python", "torch", "gloo", "chosen on one machine"))
    assert {"root", "ip", "tc", "cc", "numba", "triton", "GPUs", "NCCL", "pyzmq", "shared data"} <= set(findings)
    assert all(finding["ok"] or finding["remedy"] for finding in findings.values())
    after = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert after == before


def test_the_logs_of_a_profiling_run_that_failed_are_still_there(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the report named a log in a folder that was removed the moment after."""

    def fail(request: Request) -> int:
        logs = Path(str(request.folder)) / "logs"
        logs.mkdir()
        (logs / "rank-1.log").write_text("why it failed")
        return 3

    monkeypatch.setattr(profiling, "launch", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(LaconicError, match="exit code 3") as failed:
        profiling.measure((script,), workers=2)
    logs = Path(str(failed.value).rpartition(" ")[2])
    assert (logs / "rank-1.log").read_text() == "why it failed"
