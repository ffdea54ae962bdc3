"""The sources that are mutated: the bodies of functions of four words."""

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


def files() -> list[str]:
    """Return the files of the four words, relative to the package."""
    return sorted(p.relative_to(SOURCE).as_posix() for f in FOLDERS for p in (SOURCE / f).rglob("*.py"))


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


def techniques_of(tree: ast.Module) -> dict[str, list[str]]:
    """Return the names and aliases that classes and functions of this module are registered by, by their names here.

    What stands outside of them serves all of them.
    """
    found: dict[str, list[str]] = {}
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "technique":
                names = [ast.literal_eval(call.args[0])]
                names += [name for k in call.keywords if k.arg == "aliases" for name in ast.literal_eval(k.value)]
                found[node.name] = names  # type: ignore[attr-defined]
    return found
