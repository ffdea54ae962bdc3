"""Texts on how something was run: the command, the network, the versions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def command_line(words: object) -> str | None:
    """Return the command to type again, with the program's name in place of its path; None for an unknown command."""
    if not isinstance(words, list) or not words:
        return None
    program = PurePath(str(words[0])).name
    return shlex.join(["laconic" if program in ("laconic", "__main__.py") else program, *map(str, words[1:])])


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return a text on the engine and the network over which the workers communicated."""
    if settings.get("engine") == "virtual":
        return f"virtual workers over {settings.get('network') or '1Gbit'}"
    if settings.get("net"):
        return f"real processes on the shaped network {settings['net']}"
    if settings.get("rate"):
        delay = f" and {settings['delay']} one way" if settings.get("delay") else ""
        return f"real processes, links of {settings['rate']}{delay}"
    return "real processes on the loopback"


def versions(record: Mapping[str, Any]) -> str | None:
    """Return the recorded versions as one text, or None where none were recorded."""
    found = record.get("versions")
    return ", ".join(f"{name} {version}" for name, version in found.items()) if isinstance(found, dict) else None
