"""The cables between workers and hub: pairs of virtual Ethernet devices, or a process between taps where they delay."""

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
from laconic.launch.net.state import State

End = tuple[str, str]
"""A device and, before it, the namespace it is in."""

_LINE = Path(__file__).with_name("delay_line.py")
_lines: dict[str, subprocess.Popen[bytes]] = {}  # those this process has started, by token


def lay(state: State) -> None:
    """Both ends of every cable, in their namespaces. Where there are sites, distance lies between them alone."""
    hub = state.hub.namespace
    links = [((p.namespace, p.interface), (hub, state.port(n))) for n, p in enumerate(state.places)]
    uplinks = [((hub, near), (hub, far)) for near, far in map(state.uplink, state.sites)]
    short, long = (links, uplinks) if uplinks else ([], links)
    if state.delay_seconds:
        _start_line(state, long)
    else:
        short = [*links, *uplinks]
    for (namespace, end), (other_namespace, other) in short:
        batch("ip", namespace, [f"link add {end} type veth peer name {other} netns {other_namespace}"])


def keep_line(token: str) -> None:
    """Let the delay line outlive this process."""
    process = _lines.get(token)
    if process is not None and process.stdin is not None:
        process.stdin.write(b"keep\n")
        process.stdin.close()


def find_lines(token: str) -> list[int]:
    """Processes that are this network's delay line: one, or none."""
    mark, found = _mark(token).encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def cut_line(token: str) -> None:
    """End the delay line, whoever has started it, and wait until it has gone; its taps go with it."""
    for pid in find_lines(token):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if pid in find_lines(token):  # still the one, now that its number cannot be given to another
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [], 10)
            finally:
                os.close(descriptor)
    process = _lines.pop(token, None)
    if process is not None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _start_line(state: State, cables: list[tuple[End, End]]) -> None:
    ends = [[[str(NAMESPACES / namespace), device] for namespace, device in cable] for cable in cables]
    # A cable holds each packet for half of the delay, since two workers (or sites) are two cables apart.
    command = [sys.executable, "-I", "-S", str(_LINE), _mark(state.token), repr(state.delay_seconds / 2)]
    process = subprocess.Popen(
        [*command, json.dumps(ends)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the owner, who then takes the network down
    )
    _lines[state.token] = process
    assert process.stdout is not None
    said = process.stdout.readline().decode().strip()
    if said != "ready":
        raise ShapedNetworkError(f"the delay line could not be laid: {said or 'it ended without a word'}.")


def _mark(token: str) -> str:
    return f"laconic-line-{token}"
