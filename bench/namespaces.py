"""A small network on one machine: each worker in its own network namespace, all joined by a bridge.

A namespace has its own interface, with its own counter of bytes, and a token bucket (`tc … tbf`) on both directions of
its link makes the bottleneck real: packets queue and TCP reacts. Nothing here touches the machine's own network. The
bridge too lives in a namespace of its own, so deleting the namespaces deletes everything.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "lacbench"
_COUNTER = itertools.count()
_QUEUE_MILLISECONDS = 50


@dataclass(frozen=True)
class Place:
    """Where one worker lives."""

    namespace: str
    interface: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self.namespace, *command]


@dataclass(frozen=True)
class Network:
    """Joined places, as fast as the machine until `limit` is called."""

    switch: str
    places: tuple[Place, ...]

    def limit(self, bits_per_second: float) -> None:
        """Limit every link, in both directions: what a worker sends, and what the bridge sends to it."""
        # A bucket smaller than a segment of the kernel's offloading (64 KiB) would cut it up and cost the CPU.
        burst_bytes = max(128 * 1024, int(bits_per_second / 8 / 1000))
        bucket = f"tbf rate {bits_per_second:.0f}bit burst {burst_bytes}b latency {_QUEUE_MILLISECONDS}ms".split()
        for place in self.places:
            for namespace, device in ((place.namespace, place.interface), (self.switch, f"{place.interface}p")):
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket)


@contextmanager
def network(workers: int) -> Iterator[Network]:
    """Build it, and take it down whatever happens inside: an error, Ctrl-C or a polite kill.

    After a SIGKILL the next call clears what was left. Names hold the process id and a counter, because the kernel
    frees a deleted namespace's interfaces late.
    """
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run as root, or measure what needs none with --only unshaped")
    _sweep()
    process, serial = os.getpid(), next(_COUNTER)
    *names, switch = (f"{_PREFIX}-{process}-{serial}-{end}" for end in (*range(workers), "switch"))
    places = tuple(Place(name, f"lb{process:x}n{serial}w{n}", f"10.77.0.{n + 1}") for n, name in enumerate(names))
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        _build(switch, places)
        yield Network(switch, places)
    finally:
        for namespace in (switch, *(place.namespace for place in places)):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
        signal.signal(signal.SIGTERM, before)


def wire_bytes() -> int:
    """What this worker's own interface has sent; the loopback's counter belongs to everyone and says nothing."""
    name = os.environ["GLOO_SOCKET_IFNAME"]
    return 0 if name == "lo" else int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())


def _build(switch: str, places: Sequence[Place]) -> None:
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")
    for place in places:
        ours, theirs = place.interface, f"{place.interface}p"
        _run("ip", "netns", "add", place.namespace)
        _run(*f"ip -n {place.namespace} link add {ours} type veth peer name {theirs} netns {switch}".split())
        _run("ip", "-n", place.namespace, "address", "add", f"{place.address}/24", "dev", ours)
        _run("ip", "-n", place.namespace, "link", "set", ours, "up")
        _run("ip", "-n", place.namespace, "link", "set", "lo", "up")
        _run("ip", "-n", switch, "link", "set", theirs, "master", "bridge", "up")


def _sweep() -> None:
    """Delete the namespaces of processes that were killed before they could."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(f"{_PREFIX}-")):
        if not Path(f"/proc/{name.split('-')[1]}").exists():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
