"""A row of a comparison, and the process that runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from laconic.experiments.settings import Settings
from laconic.files import make_folder
from laconic.launch.request import Request
from laconic.values.process_place import PLACE_VARIABLES
from laconic.values.run_config import VARIABLE

_END_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """One way to train the script; `alone` marks the row that only computes, without any communication."""

    name: str
    strategy: str
    arguments: tuple[str, ...] = ()  # after the script's own
    alone: bool = False

    @classmethod
    def computing(cls, arguments: tuple[str, ...] = ()) -> Row:
        """Return the row that only computes, with which exposed communication is measured."""
        return cls("computing alone", "bsp", arguments, alone=True)

    @property
    def slug(self) -> str:
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")[:60]


def request_for(row: Row, settings: Settings, folder: Path, **more: Any) -> Request:
    """Return the request for the run of a row; `more` holds further fields that its engine needs."""
    return Request(
        command=(*settings.command, *row.arguments),
        workers=settings.workers,
        strategy=row.strategy,
        threads=settings.threads,
        folder=str(folder),
        targets=dict([settings.target]) if settings.target else {},
        alone=row.alone,
        **more,
    )


class RowProcess:
    """The run of a row in its own process group: launcher, workers, folder; console output goes to a file there."""

    def __init__(self, row: Row, request: Request, folder: Path) -> None:
        self.row, self.folder = row, folder
        shutil.rmtree(folder, ignore_errors=True)  # files of an earlier attempt must not be taken for this one's
        make_folder(folder)
        environment = {name: v for name, v in os.environ.items() if name not in (VARIABLE, *PLACE_VARIABLES)}
        text = json.dumps(asdict(request))
        with (folder / "console.log").open("ab") as console:
            self.process = Popen(
                [sys.executable, "-m", "laconic.experiments.child", text],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the comparison, which ends its rows in order
            )

    def failure(self) -> str | None:
        """Wait for the process and return how it failed, or None if it ended well."""
        code = self.process.wait()
        if code == 0:
            return None
        lines = (self.folder / "console.log").read_text(errors="replace").splitlines()
        printed = [line for line in lines if line.startswith("laconic: ")] or [line for line in lines if line.strip()]
        why = printed[-1].removeprefix("laconic: ") if printed else "it printed nothing"
        return f"exit code {code}: {why} (see {self.folder / 'console.log'})"

    def end(self) -> None:
        """End the process now; its launcher ends the workers."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
