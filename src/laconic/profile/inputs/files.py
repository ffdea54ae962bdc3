"""Text from files, plain or gzipped, with an error that says what to give where there is none."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from laconic.errors import LaconicError
from laconic.files import is_file

MOST_BYTES = 4 * 2**30  # of text: larger files are refused


class InputError(LaconicError, ValueError):
    """An error about a file that is not what its reader expects; the message says what to record or to give instead."""


def text_of(path: str | Path, what: str) -> str:
    """Return the file's text; whether it is gzipped is read from its first bytes, not from its name."""
    path = Path(path)
    if not is_file(path):
        raise InputError(f"there is no file {path}: give the path of {what}")
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}): is it {what}, and complete?") from error
    if len(raw) > MOST_BYTES:
        raise InputError(f"{path} holds more than {MOST_BYTES >> 30} GiB of text: record fewer steps")
    text = raw.decode("utf-8", errors="replace").lstrip("\ufeff")
    if not text.strip():
        raise InputError(f"{path} is empty: give the path of {what}")
    return text


def without_colours(text: str) -> str:
    """Return the text without a terminal's escape codes."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)
