"""Cables between workers and the hub: veth pairs, or taps joined by a delay line process where there is a delay."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from laconic.launch.net.kernel import NAMESPACES, ShapedNetworkError, batch
from laconic.launch.net.state import NetworkState

End = tuple[str, str]
"""One end of a cable: the namespace, and the device in it."""

_DELAY_LINE = Path(__file__).with_name("delay_line.py")
_delay_lines: dict[str, subprocess.Popen[bytes]] = {}  # processes that this process has started, by the network's token


def create_cables(state: NetworkState) -> None:
    """Create both ends of every cable in their namespaces; where there are sites, only the uplinks have the delay."""
    hub = state.hub.namespace
    links = [((p.namespace, p.interface), (hub, state.port(n))) for n, p in enumerate(state.places)]
    uplinks = [((hub, near), (hub, far)) for near, far in map(state.uplink, state.sites)]
    short, long = (links, uplinks) if uplinks else ([], links)
    if state.delay_seconds:
        _start_delay_line(state, long)
    else:
        short = [*links, *uplinks]
    for (namespace, end), (other_namespace, other) in short:
        batch("ip", namespace, [f"link add {end} type veth peer name {other} netns {other_namespace}"])


def keep_delay_line(token: str) -> None:
    """Tell the delay line to keep running after this process has ended."""
    process = _delay_lines.get(token)
    if process is not None and process.stdin is not None:
        process.stdin.write(b"keep\n")
        process.stdin.close()


def find_delay_lines(token: str) -> list[int]:
    """Return the process ids of this network's delay line: one, or none."""
    mark, found = _mark(token).encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def stop_delay_line(token: str) -> None:
    """Kill the delay line, whichever process has started it, and wait until it has ended; its taps end with it."""
    for pid in find_delay_lines(token):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if pid in find_delay_lines(token):  # still the same process, now that its id cannot be reused
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [], 10)
            finally:
                os.close(descriptor)
    process = _delay_lines.pop(token, None)
    if process is not None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _start_delay_line(state: NetworkState, cables: list[tuple[End, End]]) -> None:
    ends = [[[str(NAMESPACES / namespace), device] for namespace, device in cable] for cable in cables]
    # A cable holds each packet for half of the delay, since two workers (or sites) are two cables apart.
    command = [sys.executable, "-I", "-S", str(_DELAY_LINE), _mark(state.token), repr(state.delay_seconds / 2)]
    process = subprocess.Popen(
        [*command, json.dumps(ends)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the owner, who then takes the network down
    )
    _delay_lines[state.token] = process
    assert process.stdout is not None
    reply = process.stdout.readline().decode().strip()
    if reply != "ready":
        raise ShapedNetworkError(f"the delay line did not start: {reply or 'it ended without an error message'}.")


def _mark(token: str) -> str:
    return f"laconic-line-{token}"
