"""What happens to a run when something goes wrong in the middle of a step: real processes, real signals, real links.

Each test waits for a condition (a line in a log, a process gone) with a deadline, never for a time.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from laconic.values.run_config import RunConfig
from tests.real.launching import (
    LOST_SECONDS,
    SCRIPT,
    SOURCE,
    START_SECONDS,
    Launched,
    listens_at,
    names,
    processes_with,
)

LOOPBACK = "0100007F"  # 127.0.0.1


def test_a_killed_worker_is_named_by_the_launcher_and_by_every_survivor(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "3")
    run.until_step(5, ranks=3)
    assert listens_at(run.process.pid) == listens_at(run.pid(0)) == {LOOPBACK}, "the store is open to other machines"
    os.kill(run.pid(2), signal.SIGKILL)
    assert run.exit_code(LOST_SECONDS) == 128 + signal.SIGKILL
    assert names(run.console, 2) and "SIGKILL" in run.console
    assert "rank-2.log" in run.console
    for rank in (0, 1):
        assert names(run.log(rank), 2), run.log(rank)[-2000:]
    assert "Traceback" not in run.console.split("the run failed")[1]
    assert run.result()["state"] == "failed"
    assert run.result()["lost"]["ranks"] == [2]  # type: ignore[index]
    assert not processes_with(str(run.folder))


@pytest.mark.long
def test_a_frozen_worker_is_named_within_the_heartbeat_time(launch: Callable[..., Launched]) -> None:
    heartbeat_seconds = 3
    run = launch("--workers", "3", "--heartbeat", str(heartbeat_seconds))
    run.until_step(5, ranks=3)
    os.kill(run.pid(0), signal.SIGSTOP)
    begin = time.monotonic()
    run.until(lambda: all(names(text, 0) for text in (run.console, run.log(1), run.log(2))), LOST_SECONDS)
    assert time.monotonic() - begin < heartbeat_seconds + 2  # the promise, and two seconds for a busy machine
    assert run.exit_code(LOST_SECONDS) != 0
    assert "no heartbeat came" in run.console
    assert not processes_with(str(run.folder))


@pytest.mark.long
def test_a_worker_that_raises_is_named_with_its_error_and_its_traceback_is_shown(
    launch: Callable[..., Launched],
) -> None:
    run = launch("--workers", "3", "--", "--raise-on", "1")
    assert run.exit_code(START_SECONDS + LOST_SECONDS) == 1
    assert names(run.console, 1) and "ValueError: a deliberate mistake" in run.console
    assert re.search(r"^  \| .*ValueError: a deliberate mistake", run.console, re.MULTILINE)
    assert "Traceback" in run.log(1)
    for rank in (0, 2):
        assert names(run.log(rank), 1), run.log(rank)[-2000:]


@pytest.mark.long
def test_survivors_of_a_script_without_heartbeat_are_ended_too(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--", "--plain", "--exit-on", "1")
    assert run.exit_code(START_SECONDS + LOST_SECONDS) == 3
    assert names(run.console, 1) and "exit code 3" in run.console
    assert not processes_with(str(run.folder))


@pytest.mark.long
@pytest.mark.parametrize(("number", "frozen"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)])
def test_an_interrupted_launcher_leaves_no_process(
    launch: Callable[..., Launched], number: signal.Signals, frozen: bool
) -> None:
    run = launch("--workers", "2")
    run.until_step(3, ranks=2)
    assert len(processes_with(str(run.folder))) == 2  # the launcher's own environment was fixed before the folder
    if frozen:
        os.kill(run.pid(1), signal.SIGSTOP)
    run.process.send_signal(number)
    assert run.exit_code(LOST_SECONDS) == 128 + number
    assert not processes_with(str(run.folder))
    assert run.result()["state"] == "interrupted"
    assert not list(run.folder.glob("*.partial"))


@pytest.mark.long
def test_the_timeout_ends_the_whole_run(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--timeout", "5")
    assert run.exit_code(START_SECONDS) == 124
    assert "--timeout 5" in run.console
    assert run.result()["state"] == "timeout"
    assert not processes_with(str(run.folder))


@pytest.mark.long
def test_a_restart_starts_all_workers_again_and_can_succeed(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--restarts", "1", "--", "--steps", "8", "--exit-on", "1", "--only-attempt", "0")
    assert run.exit_code(2 * START_SECONDS) == 0, run.console
    assert "attempt 2 of 2" in run.console
    for rank in range(2):
        assert run.log(rank).count("pid ") == 2 and run.log(rank).rstrip().endswith("finished")
    assert run.result() == {**run.result(), "state": "succeeded", "attempts": 2, "lost": None}


@pytest.mark.long
def test_a_dead_launcher_takes_its_workers_along(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--heartbeat", "3")
    run.until_step(3, ranks=2)
    pids = [run.pid(0), run.pid(1)]
    run.process.kill()
    deadline = time.monotonic() + LOST_SECONDS
    while processes_with(str(run.folder)):
        assert time.monotonic() < deadline, f"{pids} still run: {run.log(0)[-500:]}"
        time.sleep(0.05)
    assert "launcher" in run.log(1)


# ---------------------------------------------------------------------------------------------- two machines


@pytest.fixture
def two_machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by one cable; 10.77.0.1 and 10.77.0.2 are their only addresses."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    tag = f"{os.getpid() % 100_000}"
    spaces = (f"lac{tag}a", f"lac{tag}b")
    try:
        for space in spaces:
            made = subprocess.run(["ip", "netns", "add", space], capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
        ip(
            "link",
            "add",
            f"v{tag}a",
            "netns",
            spaces[0],
            "type",
            "veth",
            "peer",
            "name",
            f"v{tag}b",
            "netns",
            spaces[1],
        )
        for space, end, number in ((spaces[0], "a", 1), (spaces[1], "b", 2)):
            ip("-n", space, "address", "add", f"10.77.0.{number}/24", "dev", f"v{tag}{end}")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", f"v{tag}{end}", "up")
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def start_pair(launch: Callable[..., Launched], spaces: tuple[str, str], *options: str) -> list[Launched]:
    return [
        launch(
            "--workers", "2", "--nodes", "2", "--rendezvous", "10.77.0.1:29433", *options,
            name=space, within=("ip", "netns", "exec", space),
        )
        for space in spaces
    ]  # fmt: skip


@pytest.mark.long
def test_a_link_that_goes_down_is_noticed_on_both_sides(
    launch: Callable[..., Launched], two_machines: tuple[str, str]
) -> None:
    heartbeat_seconds = 4
    pair = start_pair(launch, two_machines, "--heartbeat", str(heartbeat_seconds))
    homes = {rank: run for rank in range(4) for run in pair}
    pair[0].until(lambda: all(any("\nstep 5\n" in run.log(r) for run in pair) for r in homes), START_SECONDS)
    here, there = ([r for r in range(4) if run.log(r)] for run in pair)
    assert len(here) == len(there) == 2
    ip("-n", two_machines[1], "link", "set", f"v{two_machines[1][3:]}", "down")
    begin = time.monotonic()
    for run, own, others in ((pair[0], here, there), (pair[1], there, here)):
        output = re.compile(rf"ranks {others[0]} and {others[1]} on \S+ \(10\.77\.0\.\d\) were lost: ")
        run.until(lambda run=run, output=output: output.search(run.console) is not None, LOST_SECONDS)
        assert run.exit_code(LOST_SECONDS) != 0
        for rank in own:
            assert output.search(run.log(rank)), run.log(rank)[-2000:]
    assert time.monotonic() - begin < heartbeat_seconds + 2 * LOST_SECONDS
    assert not any(processes_with(str(run.folder)) for run in pair)


@pytest.mark.long
def test_a_death_on_one_machine_is_named_on_the_other(
    launch: Callable[..., Launched], two_machines: tuple[str, str]
) -> None:
    pair = start_pair(launch, two_machines, "--restarts", "1", "--", "--steps", "150")
    pair[0].until(lambda: all(any("\nstep 5\n" in run.log(r) for run in pair) for r in range(4)), START_SECONDS)
    victim = pair[1].pid(next(r for r in range(4) if pair[1].log(r)))
    rank = next(r for r in range(4) if f"pid {victim} " in pair[1].log(r))
    os.kill(victim, signal.SIGKILL)
    for run in pair:
        run.until(lambda run=run: names(run.console, rank), LOST_SECONDS)
    codes = [run.exit_code(START_SECONDS) for run in pair]
    assert codes == [0, 0], pair[0].console + pair[1].console
    assert all("attempt 2 of 2" in run.console for run in pair)


# ---------------------------------------------------------------------------------------------- started by hand


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Callable[..., list[subprocess.Popen[bytes]]]]:
    """Start ranks without any launcher: rank 0 hosts the store unless one is given, and nobody watches."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, size: int = 2, store: TCPStore | None = None) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1] if store is None else store.port
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        job["TORCHELASTIC_USE_AGENT_STORE"] = str(store is not None)
        message = RunConfig(heartbeat_seconds=3).to_env()
        for rank in range(size):
            environment = {**os.environ, **job, **message, "RANK": str(rank), "PYTHONPATH": str(SOURCE)}
            with (tmp_path / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-u", str(SCRIPT), *arguments]
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()


def hand_log(folder: Path, rank: int) -> str:
    return (folder / f"rank-{rank}.log").read_text(errors="replace")


def until_all_step(folder: Path, step: int, size: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(f"\nstep {step}\n" in hand_log(folder, rank) for rank in range(size)):
        assert time.monotonic() < deadline, [hand_log(folder, rank)[-500:] for rank in range(size)]
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_rank_that_hosts_the_store_is_named_too(
    by_hand: Callable[..., list[subprocess.Popen[bytes]]], tmp_path: Path, number: signal.Signals
) -> None:
    ranks = by_hand()
    until_all_step(tmp_path, 5, len(ranks))
    ranks[0].send_signal(number)
    assert ranks[1].wait(timeout=LOST_SECONDS) != 0
    assert names(hand_log(tmp_path, 1), 0), hand_log(tmp_path, 1)[-2000:]


@pytest.mark.long
def test_a_rank_that_wakes_up_after_it_was_declared_lost_ends_and_says_so(
    by_hand: Callable[..., list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = by_hand(store=store)
    until_all_step(tmp_path, 5, len(ranks))
    ranks[1].send_signal(signal.SIGSTOP)
    assert ranks[0].wait(timeout=LOST_SECONDS) != 0
    assert names(hand_log(tmp_path, 0), 1)
    ranks[1].send_signal(signal.SIGCONT)
    assert ranks[1].wait(timeout=LOST_SECONDS) != 0
    assert "this rank counts as lost: no heartbeat came" in hand_log(tmp_path, 1), hand_log(tmp_path, 1)[-2000:]


@pytest.mark.long
def test_rank_0_may_finish_first_and_take_its_store_along(
    by_hand: Callable[..., list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    ranks = by_hand("--steps", "5", "--linger", "2")
    assert [process.wait(timeout=START_SECONDS) for process in ranks] == [0, 0], hand_log(tmp_path, 1)[-2000:]
    assert "lost" not in hand_log(tmp_path, 1)
