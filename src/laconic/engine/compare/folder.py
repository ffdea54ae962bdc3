"""A comparison's folder: what was asked, where, with which versions, and everything that came of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from laconic.engine.compare.outcome import Outcome
from laconic.engine.compare.settings import CompareError, Settings
from laconic.engine.files import replacing
from laconic.engine.launcher.folder import choose_folder, versions

NAME = "compare.json"


class Folder:
    """Where a comparison is kept. One made by the protocol goes on where it was left."""

    def __init__(self, wanted: str | None, settings: Settings) -> None:
        existing = None if wanted is None else Path(wanted) / NAME
        if existing is not None and existing.exists():
            if settings.tuning is None:
                raise CompareError(f"{wanted} holds a comparison already: choose another --folder.")
            if read_settings(Path(wanted or "")) != settings:
                raise CompareError(
                    f"{wanted} holds another comparison: go on with the command in its {NAME}, or choose another "
                    "--folder."
                )
        self.path = choose_folder(wanted, f"compare-{Path(settings.command[0]).stem}")
        (self.path / "logs").rmdir()  # rows have their own
        self._settings = settings

    def begin(self, command: Sequence[str], **facts: Any) -> None:
        """Write down what is about to be compared."""
        record = {
            "command": list(command),
            "directory": str(Path.cwd()),
            "settings": self._settings.to_json(),
            "versions": versions(),
            "machine": {"name": platform.node(), "system": platform.platform(), "cores": os.cpu_count()},
            **facts,
        }
        with replacing(self.path / NAME) as beside:
            beside.write_text(json.dumps(record, indent=2) + "\n")

    @property
    def trials(self) -> Path:
        return self.path / "trials.jsonl"

    def rows(self, label: str) -> Path:
        return self.path / "rows" / label

    def remembered(self, label: str, key: Any) -> list[list[Outcome]] | None:
        """A session's outcomes, group by group, if it was run before with the same rows."""
        path = self._session(label)
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        if kept["key"] != json.loads(json.dumps(key)):
            return None
        return [[Outcome.from_json(fields) for fields in group] for group in kept["groups"]]

    def remember(self, label: str, key: Any, names: Sequence[Sequence[str]], groups: list[list[Outcome]]) -> None:
        path = self._session(label)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_text(json.dumps({"key": key, "groups": [[asdict(o) for o in g] for g in groups]}) + "\n")
        with (self.path / "blocks.jsonl").open("a") as file:
            for place, (group_names, outcomes) in enumerate(zip(names, groups, strict=True)):
                for name, outcome in zip(group_names, outcomes, strict=True):
                    for block in outcome.blocks:
                        facts: Mapping[str, Any] = {"session": label, "group": place, "row": name, **asdict(block)}
                        file.write(json.dumps(facts) + "\n")

    def _session(self, label: str) -> Path:
        return self.path / "sessions" / f"{label}.json"


def read_settings(folder: Path) -> Settings:
    """What an earlier comparison was asked for."""
    path = folder / NAME
    try:
        return Settings.from_json(json.loads(path.read_text())["settings"])
    except FileNotFoundError:
        raise CompareError(f"{folder} holds no comparison: there is no {NAME} in it.") from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise CompareError(f"{path} is not what `laconic compare` writes ({error!r}).") from error
