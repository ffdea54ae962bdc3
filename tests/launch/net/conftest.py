"""Networks under test, and what is there of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laconic.launch import net
from laconic.launch.net.state import FOLDER


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "shaped networks need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "shaped networks need iproute2"
    probe = f"laconic-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True, check=False)
    return f"network namespaces cannot be made here: {made.stderr.strip()}" if made.returncode else None


@pytest.fixture(scope="session")
def allowed() -> None:
    """Skip where the machine does not allow shaped networks."""
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def name(allowed: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other network has; whatever stands under it at the end is taken down."""
    mine = f"test-{os.getpid()}"
    yield mine
    if any(state.name == mine for state, _ in net.every()):
        net.down(mine)


@pytest.fixture
def remains() -> Callable[[str], list[str]]:
    """What exists of a network: namespaces, processes in a delay line's role, state files."""

    def look(name: str) -> list[str]:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        namespaces = [line.split()[0] for line in listed.splitlines() if line.startswith(f"laconic-{name}-")]
        files = [str(path) for path in FOLDER.glob(f"{name}.json*")]
        return namespaces + files + [f"line {pid}" for pid in lines(name)]

    return look


def lines(name: str) -> list[int]:
    """Delay lines whose cables end in this network's namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"laconic-line-" in text and f"laconic-{name}-".encode() in text:
            found.append(int(entry.name))
    return found
