"""The planner knows no technique by name: what it says of one, the technique itself declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import laconic.planner
from laconic import registry
from laconic.experiments.rivals.text import RIVALS
from laconic.literals import NAME
from laconic.registry import normal

SOURCES = Path(laconic.planner.__file__).parent
ALLOWED = ("bsp", "none", "nccl")  # the plain method, with which all others are compared; recorded times of NCCL


@cache
def names() -> frozenset[str]:
    trained = [entry for entry in registry.entries() if entry.axis != "cluster"]  # whose names traces have, too
    registered = {normal(name) for entry in trained for name in entry.names}
    return frozenset(registered | {normal(name) for name in RIVALS}) - set(ALLOWED)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of string literals, those within f-strings too, without docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def named(text: str) -> set[str]:
    """Return the techniques that a literal names: as a whole, or within what is written as a strategy is.

    An English sentence may use a word that is also a name ("a ring", "memory"): no `/`, `+` or `(` is next to it there,
    and it has no underscore.
    """
    if normal(text) in names():
        return {text}
    written = re.findall(rf"(?:(?<=/ )|(?<=\+)|(?<=\[)){NAME}|{NAME}(?=[(+]|\]@| /)|\b{NAME}:{NAME}", text)
    identifiers = [name for name in re.findall(NAME, text) if "_" in name]
    return {name for name in (*written, *identifiers) if normal(name) in names()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topk", {"topk"}),
        ("MG-WFBP", {"MG-WFBP"}),
        ("topk(0.1)+ef", {"topk", "ef"}),
        ("topk(", {"topk"}),
        (")+ef", {"ef"}),
        ("bsp / none / allreduce / ", {"allreduce"}),
        (" / none / ps(shards=", {"ps"}),
        ("[bsp]@node > [local(", {"local"}),
        ("torch:ddp", {"torch:ddp"}),
        ("torch:ddp16(bucket_cap_mb=", {"torch:ddp16"}),
        ("as cast_fp16 does", {"cast_fp16"}),
        ("bsp / none", set()),
        ("all-reduces by ring or tree, as NCCL", set()),
        ("'s memory", set()),
        ("tuned DDP with 16-bit gradients", set()),
        ("half of the budget (a share)", set()),
    ],
)
def test_a_name_is_told_from_a_word_of_english(text: str, expected: set[str]) -> None:
    assert named(text) == expected


def test_no_source_of_the_planner_names_a_technique() -> None:
    found = {
        f"{path.relative_to(SOURCES)}:{line}: {text!r}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line, text in literals(path.read_text(encoding="utf-8"))
        if named(text)
    }
    assert not found, "let the technique declare it:\n" + "\n".join(sorted(found))
