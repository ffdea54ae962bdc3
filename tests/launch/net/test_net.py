"""Shaped networks are what was asked for, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from laconic.launch import net
from laconic.launch.net import Namespace, ShapedNetwork, ShapedNetworkError
from laconic.launch.request import LaunchError, Request
from tests.launch.net.conftest import lines
from tests.real.launching import LOST_SECONDS, SCRIPT, Launched, names

Remains = Callable[[str], list[str]]


def laconic(*arguments: str) -> str:
    command = [sys.executable, "-m", "laconic", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "160"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(program: str, place: Namespace, *question: str) -> list[dict[str, object]]:
    command = [program, "-n", place.namespace, "-json", *question]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def rate_of(place: Namespace) -> object:
    [bucket] = asked("tc", place, "qdisc", "show", "dev", place.interface)
    return bucket["options"]["rate"] * 8 if bucket["kind"] == "tbf" else None  # type: ignore[index]


def bound(place: Namespace) -> socket.socket:
    """A socket that lives in the place for ever."""
    with place.entered():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((place.address, 4000))
    made.settimeout(0.2)
    return made


def deliver(sender: socket.socket, receiver: socket.socket, text: bytes) -> set[bytes]:
    """Send until it arrives; all that arrived on the way."""
    arrived: set[bytes] = set()
    for _ in range(50):
        sender.sendto(text, receiver.getsockname())
        try:
            arrived.add(receiver.recv(64))
        except TimeoutError:
            continue
        if text in arrived:
            return arrived
    raise AssertionError(f"{text!r} never arrived")


def test_the_commands_make_show_change_and_remove_a_network(name: str, remains: Remains) -> None:
    message = laconic("net", "up", "--workers", "3", "--rate", "50Mbit", "--delay", "2ms", "--name", name)
    assert f"laconic run --net {name} --workers 3" in message
    found = net.find(name)
    assert [rate_of(place) for place in found.places] == [50e6] * 3
    assert lines(name)
    laconic("net", "limit", name, "--rate", "10Mbit", "--worker", "1")
    laconic("net", "cut", name, "2")
    assert [rate_of(place) for place in found.places] == [50e6, 10e6, 50e6]
    [row] = [line for line in laconic("net", "status").splitlines() if name in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == [name, "3", "50Mbit, 10Mbit, 50Mbit", "2 ms", "alive", "2", "net down"]
    laconic("net", "down", name)
    assert not remains(name)
    with pytest.raises(ShapedNetworkError, match="has been taken down"):
        found.limit(1e6)
    with pytest.raises(ShapedNetworkError, match=f"there is no network called '{name}'"):
        net.down(name)


def test_a_name_is_given_once(name: str) -> None:
    net.up(name, workers=1)
    with pytest.raises(ShapedNetworkError, match="already"):
        net.up(name, workers=1)
    with pytest.raises(ShapedNetworkError, match="no worker 1"):
        net.find(name).cut(1)


@pytest.mark.parametrize("delay_seconds", [0.0, 0.002])
def test_a_cut_worker_gets_and_sends_nothing_until_it_is_restored(allowed: None, delay_seconds: float) -> None:
    with net.shaped(2, 1e8, delay_seconds) as shaped:
        here, there = (bound(place) for place in shaped.places)
        with here, there:
            assert deliver(here, there, b"hello") == deliver(there, here, b"hello") == {b"hello"}
            know_each_other(shaped)
            shaped.cut(1)
            here.sendto(b"lost", there.getsockname())
            there.sendto(b"lost", here.getsockname())
            shaped.restore(1)
            assert deliver(here, there, b"found") == deliver(there, here, b"found") == {b"found"}
            assert rate_of(shaped.places[1]) == 1e8


def know_each_other(shaped: ShapedNetwork) -> None:
    """Hardware addresses for good: otherwise the kernel keeps packets until it has asked for one, through the cut."""
    links = [asked("ip", place, "link", "show", "dev", place.interface)[0]["address"] for place in shaped.places]
    for place, other, hardware in zip(shaped.places, reversed(shaped.places), reversed(links), strict=True):
        neighbour = ["neigh", "replace", other.address, "lladdr", str(hardware), "dev", place.interface]
        subprocess.run(["ip", "-n", place.namespace, *neighbour, "nud", "permanent"], check=True)


def test_the_counters_count_each_worker_for_itself_and_the_hub_is_reached(allowed: None) -> None:
    with net.shaped(3, bits_per_second=None) as shaped:
        assert rate_of(shaped.places[0]) is None
        worker, hub = bound(shaped.places[0]), bound(shaped.hub)
        with worker, hub:
            deliver(worker, hub, b"x" * 60)
        (sent, received), (idle, _) = shaped.counters(0), shaped.counters(1)
        assert sent >= 102 and received >= 42 and idle < sent  # with headers; the answer to who has this address


@pytest.mark.parametrize("delay_seconds", [0.0, 0.002])
def test_an_error_inside_leaves_nothing(allowed: None, remains: Remains, delay_seconds: float) -> None:
    with pytest.raises(KeyError), net.shaped(2, delay_seconds=delay_seconds) as shaped:
        assert remains(shaped.name)
        with pytest.raises(ShapedNetworkError, match="belongs to process"):
            net.down(shaped.name)
        raise KeyError
    assert not remains(shaped.name)


HOLD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever is started in the background ignores
from laconic.launch import net
with net.shaped(2, delay_seconds=0.002) as n: print(n.name, flush=True); input()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing(allowed: None, remains: Remains, number: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLD]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **streams) as holder:  # type: ignore[call-overload]
        name = holder.stdout.readline().strip()
        assert remains(name)
        holder.send_signal(number)
        assert holder.wait(20) != 0
    if number is signal.SIGKILL:
        assert remains(name)
        net.every()  # whoever comes next
    assert not remains(name)


DIE = """
import os, subprocess, sys
from laconic.launch import net
run, left = subprocess.run, iter(range(int(sys.argv[2])))
def run_or_die(command, **options):
    if next(left, None) is not None:
        return run(command, **options)
    last = subprocess.Popen(command, stdin=-1, stderr=-3, text=True, pass_fds=options["pass_fds"])
    last.stdin.write(options.get("input") or "")
    last.stdin.close()
    os.kill(os.getpid(), 9)  # while the command goes on
subprocess.run = run_or_die
net.up(sys.argv[1], workers=2, delay_seconds=float(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("delay", "commands"), [("0", n) for n in (0, 2, 4, 6, 9, 11)] + [("0.002", n) for n in (3, 6)]
)
def test_a_kill_while_it_is_being_made_leaves_nothing(name: str, remains: Remains, delay: str, commands: int) -> None:
    died = subprocess.run([sys.executable, "-c", DIE, name, str(commands), delay], check=False)
    assert died.returncode == -signal.SIGKILL
    assert remains(name)
    net.every()
    assert not remains(name)


@pytest.mark.long
def test_a_run_places_its_workers_and_leaves_nothing_of_them(name: str, launch: Callable[..., Launched]) -> None:
    shaped = net.up(name, workers=2, bits_per_second=1e8)
    with pytest.raises(LaunchError, match=r"do not fit .* 2 places"):
        Request(command=(str(SCRIPT),), workers=3, net=name)
    run = launch("--net", name, "--workers", "2")
    run.until_step(3, 2)
    assert min(shaped.counters(worker)[0] for worker in (0, 1)) > 4 * 4000  # four steps of 1000 numbers
    os.kill(run.pid(1), signal.SIGKILL)
    assert run.exit_code(LOST_SECONDS) != 0
    assert names(run.console, 1)
    assert not run.left_behind()
    inside = [subprocess.check_output(["ip", "netns", "pids", p.namespace]) for p in (*shaped.places, shaped.hub)]
    assert inside == [b"", b"", b""]
