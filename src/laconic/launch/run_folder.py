"""The run folder: the record of what ran and how it ended, with what is needed to run it again."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from laconic._version import __version__
from laconic.errors import LaconicError
from laconic.files import write_text
from laconic.values.run_config import TRAFFIC

_PROBE_BYTES = 1 << 14
_LIVES = 1 << 20  # more than a process has in one run


def choose_folder(wanted: str | None, stem: str) -> Path:
    """Return the folder asked for, or a new one below `runs/` named after the time and the script."""
    if wanted is not None:
        return _make(Path(wanted), exist_ok=True)
    base = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{stem}"
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        try:
            return _make(base.with_name(base.name + suffix), exist_ok=False)
        except FileExistsError:
            continue
    raise LaconicError(f"no unused name is left for a run folder beside {base}: choose one with --folder.")


def _make(folder: Path, exist_ok: bool) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
        (folder / "logs").mkdir(exist_ok=True)
        with TemporaryFile(dir=folder / "logs") as probe:  # a full disk, or a folder of somebody else
            probe.write(bytes(_PROBE_BYTES))
    except FileExistsError as error:
        if exist_ok:
            raise LaconicError(f"the run folder {folder} cannot be made: {error.filename} is a file.") from error
        raise
    except OSError as error:
        raise LaconicError(
            f"the run folder {folder} cannot be made or written to: {error.strerror}. Choose another with --folder."
        ) from error
    return folder.absolute()


def forget_figures(folder: Path, ranks: Sequence[int], size: int) -> None:
    """Remove what an earlier run in the same folder has left of these ranks, and of ranks that this run does not have:
    its metrics and its traffic would be taken for this run's."""
    for path in (path for name in ("metrics", TRAFFIC) for path in (folder / name).glob("rank-*.json*")):
        rank = int(path.stem.removeprefix("rank-"))
        if rank in ranks or rank >= size:
            path.unlink(missing_ok=True)


def first_life(folder: Path, resume: bool) -> int:
    """Return the life with which processes of a run with servers begin, and note it in the folder.

    Servers take no message from a life before one that they know: a run that continues another begins after its lives.
    """
    file = folder / "first-life"
    life = int(file.read_text()) + _LIVES if resume and file.exists() else 0
    write_text(file, str(life))
    return life


class RunRecord:
    """`run.json`: the command and its environment at the start, the result at the end.

    On hosts other than the first it is called `run-node-N.json`, so that all may share one folder; on a host that never
    got a number, it is named after the host.
    """

    def __init__(self, folder: Path, nodes: int, **fields: Any) -> None:
        self._folder = folder
        self._name = "run.json" if nodes == 1 else f"run-{socket.gethostname()}.json"
        self._fields: dict[str, Any] = {
            **fields,
            "nodes": nodes,
            "machine": socket.gethostname(),
            "directory": str(Path.cwd()),
            "versions": versions(),
            "started": _now(),
        }

    def begin(self, node: int) -> None:
        """Write what is about to run; `node` is this host's number among all."""
        self._name = "run.json" if node == 0 else f"run-node-{node}.json"
        self._write()

    def end(self, state: str, exit_code: int, **fields: Any) -> None:
        """Write how the run ended."""
        self._fields |= {"ended": _now(), "result": {"state": state, "exit_code": exit_code, **fields}}
        self._write()

    def _write(self) -> None:
        write_text(self._folder / self._name, json.dumps(self._fields, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of the software on which a run's numbers depend."""
    return {"laconic": __version__, "python": platform.python_version(), "torch": installed("torch") or "missing"}


def installed(package: str) -> str | None:
    """Return the installed version of a package, without importing it, or None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
