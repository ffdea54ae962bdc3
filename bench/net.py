"""Shaped networks against what was asked of them: nothing left behind, the rate, the delay, and what both allow.

    python bench/net.py                    # needs root, `ip` and `tc`; about three minutes
    python bench/net.py --only cycles

Every tenth of 100 set-ups is killed at a different moment of its making. What exists afterwards (namespaces,
interfaces, delay lines, state files) must be what existed before. Rates are what a TCP stream delivers, with the
headers of its packets, over a few seconds; delays are round trips of single packets, also while every core is busy.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import ShapedNetwork, down, every, shaped, up
from laconic.launch.net.state import FOLDER
from laconic.units import write_rate

CYCLES, CRASH_EVERY = 100, 10
RATES = (1e7, 1e8, 1e9)
DELAYS_SECONDS = (0.005, 0.025)
REPEATS, STREAM_SECONDS, RAMP_SECONDS, PINGS = 3, 4.0, 2.0, 50
WIRE_BYTES, PAYLOAD_BYTES = 1514, 1448  # of a full packet: Ethernet, IP and TCP with time stamps around the payload
PORT = 5001


def main() -> None:
    parser = argparse.ArgumentParser(description="Shaped networks against what was asked.")
    parser.add_argument("--only", choices=("cycles", "rate", "delay"))
    parser.add_argument("--as", dest="role", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role, *rest = arguments.role
        ROLES[role](*rest)
        return
    parts = {"cycles": cycles, "rate": rates, "delay": delays}
    chosen = [arguments.only] if arguments.only else list(parts)
    fine = [parts[name](Console()) for name in chosen]
    sys.exit(0 if all(fine) else 1)


def cycles(console: Console) -> bool:
    """Set networks up and take them down; every tenth set-up is killed, each time a few commands later, and the next
    one has to remove what is left."""
    before, begin, killed = inventory(), time.perf_counter(), 0
    for cycle in range(CYCLES):
        crash, is_crash = cycle // CRASH_EVERY, cycle % CRASH_EVERY == CRASH_EVERY - 1
        delay = 0.005 if (crash if is_crash else cycle) % 2 else 0.0
        if is_crash:
            doomed = [
                sys.executable,
                __file__,
                "--as",
                "crash",
                str(17 * crash // (CYCLES // CRASH_EVERY - 1)),
                str(delay),
            ]
            killed += subprocess.run(doomed, check=False).returncode == -signal.SIGKILL
        else:
            up("bench", workers=4, delay_seconds=delay)
            down("bench")
    others = [state.name for state, _ in every() if state.owner is not None]  # networks of living processes
    left = {item for item in inventory() - before if not any(f"{other}-" in item for other in others)}
    table = Table("cycles", "killed while being made", "seconds each", "left behind", title="Nothing left behind")
    seconds = (time.perf_counter() - begin) / CYCLES
    table.add_row(str(CYCLES), str(killed), f"{seconds:.2f}", ", ".join(sorted(left)) or "nothing")
    console.print(table)
    return not left and killed == CYCLES // CRASH_EVERY


def inventory() -> set[str]:
    """Return all namespaces, interfaces, delay lines and state files that exist, whoever made them."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    namespaces = {f"{line.split()[0]}-" for line in lines("ip", "netns", "list")}
    inside = {f"{name} {line}" for name in namespaces for line in lines("ip", "-n", name[:-1], "-brief", "link")}
    commands = {entry: read(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    processes = {f"{entry} {text.decode()}" for entry, text in commands.items() if b"laconic-line-" in text}
    own = {f"interface {line.split()[0]}" for line in lines("ip", "-brief", "link")}
    return namespaces | inside | own | processes | {f"{path.stem}-.json" for path in FOLDER.glob("*.json")}


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def rates(console: Console) -> bool:
    """Measure the rate of a TCP stream, without a delay and with one."""
    table = Table("asked", "delay, one way", "measured/asked", "worst", "payload", title="Rate, payload and headers")
    fine = True
    for asked, delay in itertools.product(RATES, (0.0, DELAYS_SECONDS[-1])):
        with shaped(2, asked, delay) as net:
            payloads = [stream_bits_per_second(net) for _ in range(REPEATS)]
        ratios = [payload * WIRE_BYTES / PAYLOAD_BYTES / asked for payload in payloads]
        middle, worst = statistics.median(ratios), max(ratios, key=lambda ratio: abs(ratio - 1))
        fine = fine and abs(middle - 1) <= 0.05
        payload = f"{statistics.median(payloads) / 1e6:.1f} Mb/s"
        table.add_row(write_rate(asked), f"{1e3 * delay:g} ms", f"{middle:.3f}", f"{worst:.3f}", payload)
    with shaped(2, None, DELAYS_SECONDS[-1]) as net:
        line = statistics.median(stream_bits_per_second(net) for _ in range(REPEATS))
    table.caption = f"the delay line itself, without a limit: {line / 1e9:.1f} Gb/s of payload"
    console.print(table)
    return fine


def delays(console: Console) -> bool:
    """Measure round trips of single packets between two workers."""
    table = Table("asked, one way", "cores", "round trip, median", "5–95 %", "measured/asked", title="Delay")
    fine = True
    for asked, busy in itertools.product(DELAYS_SECONDS, (False, True)):
        with shaped(2, 1e8, asked) as net:
            spinners = [start(list, "spin") for _ in range(2 * (os.cpu_count() or 1) * busy)]
            seconds = round_trips_seconds(net)
            for spinner in spinners:
                spinner.kill()
                spinner.communicate()
        cuts, middle = statistics.quantiles(seconds, n=20), statistics.median(seconds)
        fine = fine and abs(middle / (2 * asked) - 1) <= 0.1
        spread = f"{1e3 * cuts[0]:.2f}–{1e3 * cuts[-1]:.2f} ms"
        load = "two processes each" if busy else "idle"
        table.add_row(f"{1e3 * asked:g} ms", load, f"{1e3 * middle:.2f} ms", spread, f"{middle / (2 * asked):.3f}")
    console.print(table)
    return fine


def stream_bits_per_second(net: ShapedNetwork) -> float:
    sender, receiver = net.places
    server = start(receiver.command, "receive")
    start(sender.command, "send", receiver.address, wait=False).wait(60)
    return float(server.communicate(timeout=60)[0])


def round_trips_seconds(net: ShapedNetwork) -> list[float]:
    here, there = net.places
    server = start(there.command, "echo")
    output = start(here.command, "ping", there.address, wait=False).communicate(timeout=60)[0]
    server.kill()
    server.communicate()
    return [float(text) for text in output.split()]


def start(place: Callable[[list[str]], list[str]], *role: str, wait: bool = True) -> subprocess.Popen[str]:
    command = place([sys.executable, __file__, "--as", *role])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if wait and process.stdout is not None:
        process.stdout.readline()  # it listens
    return process


# ------------------------------------------------------------------------------------------------ inside the network


def receive() -> None:
    with socket.create_server(("0.0.0.0", PORT)) as server:
        print("listening", flush=True)
        stream, _ = server.accept()
    buffer, begin, received = bytearray(1 << 20), time.monotonic(), 0
    first = last = 0.0
    while count := stream.recv_into(buffer):
        now = time.monotonic()
        if now - begin < RAMP_SECONDS:  # the bucket is full at first, and TCP is still finding the rate
            continue
        if first:
            received += count
        first, last = first or now, now
    print(8 * received / (last - first))


def send(address: str) -> None:
    data, end = bytes(1 << 20), time.monotonic() + RAMP_SECONDS + STREAM_SECONDS
    with socket.create_connection((address, PORT)) as stream:
        while time.monotonic() < end:
            stream.sendall(data)


def be_prompt() -> None:
    """Give this process priority, so that the network's delay is measured and not the wait for a core."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def echo() -> None:
    be_prompt()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", PORT))
        print("listening", flush=True)
        while True:
            server.sendto(*server.recvfrom(64))


def ping(address: str) -> None:
    be_prompt()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, PORT))
        for number in range(PINGS + 1):
            begin = time.perf_counter()
            client.send(b"?")
            client.recv(64)
            if number:  # the first also asks for the other's hardware address
                print(time.perf_counter() - begin)


def spin() -> None:
    print("spinning", flush=True)
    while True:
        pass


def crash(commands: str, delay_seconds: str) -> None:
    """Die in the middle of a set-up, after this many commands, while the next one runs."""
    run, left = subprocess.run, iter(range(int(commands)))

    def run_or_die(command: list[str], **options: Any) -> Any:
        if next(left, None) is not None:
            return run(command, **options)
        last = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, pass_fds=options["pass_fds"], stderr=subprocess.DEVNULL
        )
        if last.stdin is not None:
            last.stdin.write(options.get("input") or "")
            last.stdin.close()
        os.kill(os.getpid(), signal.SIGKILL)

    subprocess.run = run_or_die  # type: ignore[assignment]
    up("bench", workers=4, delay_seconds=float(delay_seconds))


ROLES: dict[str, Callable[..., None]] = {
    "receive": receive,
    "send": send,
    "echo": echo,
    "ping": ping,
    "spin": spin,
    "crash": crash,
}


if __name__ == "__main__":
    main()
