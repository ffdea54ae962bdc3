"""Files: atomic replacement, so that a reader finds the complete file or none, and writing that fails in a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laconic.errors import WriteError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` when the block succeeds and is removed when it fails."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        beside.replace(path)
    except WriteError:
        raise
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        _remove(beside)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, where they are missing, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, error) from error
    return path


def user_cache(name: str) -> Path:
    """Return the folder of this name in the user's cache, by the XDG convention; it need not be there yet."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "laconic" / name


def is_file(path: str | Path) -> bool:
    """Return whether there is a file; a name that none can have (too long, with a zero byte) is none."""
    return os.path.isfile(path)  # noqa: PTH113 (pathlib's raises for such names)


def exists(path: str | Path) -> bool:
    """Return whether there is a file or a folder of this name."""
    return os.path.exists(path)  # noqa: PTH110 (as above)


def _remove(path: Path) -> None:
    with suppress(OSError):  # where nothing could be written, there is nothing to remove
        path.unlink(missing_ok=True)


def _refused(path: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{path} cannot be written ({error.strerror or error}): make room or give write access there, or choose "
        "another place"
    )
