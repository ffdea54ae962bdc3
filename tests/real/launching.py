"""Launchers under test: start them, read their output, and leave no process behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "loop.py"
SOURCE = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-m", "laconic", "run"]
START_SECONDS = 150  # four interpreters import torch on two cores, beside other tests and whatever else runs there
LOST_SECONDS = 10  # what the project promises for a death; a freeze may take the heartbeat's time


class Launched:
    """A launcher under test, its run folder, and its output."""

    def __init__(self, folder: Path, *arguments: str, within: tuple[str, ...] = (), script: Path = SCRIPT) -> None:
        self.folder = folder
        self._console = folder.with_suffix(".console")
        options, script_arguments = split(arguments)
        command = [*within, *COMMAND, "--folder", str(folder), *options, str(script), *script_arguments]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        with self._console.open("wb") as console:
            self.process = subprocess.Popen(
                command, env=environment, stdout=console, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def console(self) -> str:
        return self._console.read_text(errors="replace")

    def log(self, rank: int) -> str:
        path = self.folder / "logs" / f"rank-{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pid(self, rank: int) -> int:
        """The pid a rank printed last: that of its latest attempt."""
        return int(re.findall(r"^pid (\d+)", self.log(rank), re.MULTILINE)[-1])

    def until_step(self, step: int, ranks: int) -> None:
        self.until(lambda: all(f"\nstep {step}\n" in self.log(rank) for rank in range(ranks)), START_SECONDS)

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None or condition(), f"the launcher ended early:\n{self.console}"
            assert time.monotonic() < deadline, f"nothing happened for {seconds} s:\n{self.console}"
            time.sleep(0.02)

    def left_behind(self) -> list[int]:
        """Pids of processes of this run that still live."""
        return processes_with(str(self.folder))

    @staticmethod
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def exit_code(self, seconds: float) -> int:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=seconds)
        logs = "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in self.folder.glob("logs/*"))
        raise AssertionError(f"the launcher goes on after {seconds} s:\n{self.console}\n{logs}")

    def result(self) -> dict[str, object]:
        return json.loads((self.folder / "run.json").read_text())["result"]


def split(arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Options of the launcher, then, after `--`, those of the script."""
    position = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:position]), list(arguments[position + 1 :])


def processes_with(text: str) -> list[int]:
    """Pids of live processes whose environment mentions `text`: all that a run has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if text.encode() in (entry / "environ").read_bytes() and "Z" not in (entry / "stat").read_text().split()[2]:
                found.append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def listens_at(pid: int) -> set[str]:
    """The addresses, as the kernel writes them in hexadecimal, at which a process accepts connections."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def names(text: str, rank: int) -> bool:
    """Return whether some line names this rank as lost."""
    return re.search(rf"laconic.*rank {rank} on \S+.* was lost: ", text, re.IGNORECASE) is not None
