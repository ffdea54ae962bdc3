"""The folder of a comparison: its settings, machine and versions, and all its outcomes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from laconic.experiments.outcome import RunOutcome
from laconic.experiments.settings import CompareError, Settings
from laconic.files import make_folder, write_text
from laconic.launch.run_folder import choose_folder, versions
from laconic.reading import Source

NAME = "compare.json"


@dataclass(frozen=True)
class Session:
    """The outcomes of one session, group by group, and the rows and settings that they are of."""

    key: Any
    groups: list[list[RunOutcome]]


class Folder:
    """The folder in which a comparison is kept; a comparison by the protocol resumes from it where it stopped."""

    def __init__(self, wanted: str | None, settings: Settings) -> None:
        if wanted is not None:
            _check_unmixed(Path(wanted), settings)
        self.path = choose_folder(wanted, f"compare-{Path(settings.command[0]).stem}")
        (self.path / "logs").rmdir()  # rows have their own
        self._settings = settings

    def begin(self, command: Sequence[str], **facts: Any) -> None:
        """Write the command, settings, file contents, versions and machine of the comparison to `compare.json`."""
        record = {
            "command": list(command),
            "directory": str(Path.cwd()),
            "settings": self._settings.to_json(),
            "contents": _contents(self._settings),
            "versions": versions(),
            "machine": {"name": platform.node(), "system": platform.platform(), "cores": os.cpu_count()},
            **facts,
        }
        write_text(self.path / NAME, json.dumps(record, indent=2) + "\n")

    @property
    def trials(self) -> Path:
        return self.path / "trials.jsonl"

    def rows(self, label: str) -> Path:
        """Return the folder of the rows of one session or trial."""
        return self.path / "rows" / label

    def load_session(self, label: str, key: Any) -> list[list[RunOutcome]] | None:
        """Return a session's outcomes, group by group, if it ran before with the same rows and none of them failed."""
        path = self._session(label)
        if not path.exists():
            return None
        source = Source(path, "session of a comparison", "remove it, and the session runs again.", CompareError)
        kept = source.value(source.json(source.text()), Session)
        return kept.groups if kept.key == json.loads(json.dumps(key)) else None

    def save_session(
        self, label: str, key: Any, names: Sequence[Sequence[str]], groups: list[list[RunOutcome]]
    ) -> None:
        """Save a session's outcomes, unless a row failed: then all its rows run again the next time."""
        self._write_blocks(label, names, groups)
        if any(outcome.error is not None for group in groups for outcome in group):
            return
        path = self._session(label)
        make_folder(path.parent)
        write_text(path, json.dumps(asdict(Session(key, groups))) + "\n")

    def _write_blocks(self, label: str, names: Sequence[Sequence[str]], groups: list[list[RunOutcome]]) -> None:
        """Write every block's numbers to `blocks.jsonl`, replacing those of an earlier attempt at this session."""
        path = self.path / "blocks.jsonl"
        source = Source(path, "list of blocks", "remove it: it is written anew.", CompareError)
        before = source.text().splitlines() if path.exists() else []
        lines = [line for line in before if source.value(source.json(line), dict[str, Any]).get("session") != label]
        for place, (group_names, outcomes) in enumerate(zip(names, groups, strict=True)):
            for name, outcome in zip(group_names, outcomes, strict=True):
                for block in outcome.blocks:
                    lines.append(json.dumps({"session": label, "group": place, "row": name, **asdict(block)}))
        write_text(path, "".join(f"{line}\n" for line in lines))

    def _session(self, label: str) -> Path:
        return self.path / "sessions" / f"{label}.json"


def read_settings(folder: Path) -> Settings:
    """Return the settings of an earlier comparison from its folder."""
    return Settings.from_json(_read(folder).get("settings"), folder / NAME)


def _read(folder: Path) -> dict[str, Any]:
    source = Source(folder / NAME, "comparison", "give a folder in which `laconic compare` left one.", CompareError)
    return source.value(source.json(source.text()), dict[str, Any])


def _check_unmixed(folder: Path, settings: Settings) -> None:
    """Refuse a folder in which this comparison's numbers would be mixed with those of something else."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not found:
        return
    if NAME not in found:
        what = "a run" if any(name.startswith("run") and name.endswith(".json") for name in found) else found[0]
        raise CompareError(f"{folder} is in use: it holds {what}, no comparison. Choose another --folder.")
    if settings.tuning is None:
        raise CompareError(f"{folder} holds a comparison already: choose another --folder.")
    record = _read(folder)
    if record.get("settings") != json.loads(json.dumps(settings.to_json())):
        raise CompareError(
            f"{folder} holds another comparison: go on with the command in its {NAME}, or choose another --folder."
        )
    changed = [
        *_changes(record.get("contents"), _contents(settings), lambda name, was, now: f"{name} has other content now"),
        *_changes(record.get("versions"), versions(), lambda name, was, now: f"{name} was {was} and is {now}"),
    ]
    if changed:
        raise CompareError(
            f"{folder} cannot go on, its numbers would not be comparable: {', '.join(changed)}. Choose another "
            "--folder, or change that back."
        )


def _contents(settings: Settings) -> dict[str, str]:
    """Return the SHA-256 digests of the files that decide the numbers: the script and the virtual workers' network."""
    files = [settings.command[0]]
    if settings.network is not None and settings.network.endswith(".toml"):
        files.append(settings.network)
    return {name: sha256(Path(name).read_bytes()).hexdigest() for name in files}


def _changes(was: Any, now: Mapping[str, str], describe: Callable[[str, str, str], str]) -> list[str]:
    before = was if isinstance(was, dict) else {}
    return [
        describe(name, before.get(name, "unknown"), value) for name, value in now.items() if before.get(name) != value
    ]
