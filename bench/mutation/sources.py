"""The sources that are mutated: the bodies of functions, of four words first of all."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "laconic"
FOLDERS = ("sync", "compression", "schedule", "architecture")
BLOCKS = ("body", "orelse", "finalbody")


@cache
def files(every: bool = False) -> list[str]:
    """Return the files of the four words, or every file, relative to the package."""
    folders = [SOURCE] if every else [SOURCE / folder for folder in FOLDERS]
    return sorted(path.relative_to(SOURCE).as_posix() for folder in folders for path in folder.rglob("*.py"))


def tree_of(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text(), file)


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""


def digest(test: str, reached: Iterable[str]) -> str:
    """Return what changes when a test's file does, or one of the files that it reaches."""
    paths = [ROOT / test.partition("::")[0], *(SOURCE / file for file in sorted(reached))]
    return hashlib.sha256(b"".join(map(_digest, paths))).hexdigest()[:16]


def blocks(node: ast.AST, inside: bool = False) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that are in functions, inner ones first."""
    within = inside or isinstance(node, ast.FunctionDef)
    for child in ast.iter_child_nodes(node):
        yield from blocks(child, within)
    for name in BLOCKS:
        block = getattr(node, name, None)
        if within and isinstance(block, list) and block:
            yield block
