"""Atomic file replacement: a reader finds the complete file or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` when the block succeeds and is removed when it fails."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
