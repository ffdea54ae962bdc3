"""The cache of measured profiles: a file for each combination of script, arguments, workers, machine and network."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laconic._version import __version__
from laconic.errors import WriteError
from laconic.files import user_cache
from laconic.profile.machine import machine
from laconic.values.profile import VERSION


@dataclass(frozen=True)
class ProfileKey:
    """What is profiled; if any field changes, the profile is measured again."""

    script: Path
    arguments: tuple[str, ...]
    workers: int
    threads: int = 1
    bits_per_second: tuple[float | None, ...] = ()
    delay_seconds: float = 0.0
    steps: int = 0
    play: int | None = None  # the one worker acts as one of so many
    words: tuple[str, ...] | None = None  # chains of compressors that are timed

    @property
    def path(self) -> Path:
        """The file in which its profile is kept; the script counts by its text, not by its name or age."""
        facts: dict[str, Any] = {
            **asdict(self),
            "script": hashlib.sha256(self.script.read_bytes()).hexdigest(),
            "machine": machine(self.threads),
            "versions": [__version__, VERSION],
        }
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        return cache_folder() / f"{self.script.stem}-{key}.json"


def make_cache_folder(folder: Path) -> None:
    """Make the folder of profiles where it is missing; refuse one in which nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WriteError(
            f"the cache folder {folder} cannot be written ({error.strerror}): set XDG_CACHE_HOME to a folder of yours"
        ) from error


def cache_folder() -> Path:
    """Return the folder of profiles in the user's cache."""
    return user_cache("profiles")
