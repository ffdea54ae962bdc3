"""Whatever the registry declares as evidence has a test that bears it: `@pytest.mark.evidence`, found in the sources.

The mark is kept while tests run, too: one that names a recording fails unless it reads that file (`tests/conftest.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from laconic import registry
from laconic.federated.strategy import FederatedStrategy
from laconic.registry import Entry, Evidence
from laconic.strategy import Strategy
from tests.data import FOLDER

HERE = Path(__file__).resolve().parent
RECORDED = (Evidence.FIXTURE, Evidence.THIRD_PARTY)
THIRD_PARTIES = {f"{name}.npz": "GRACE" for name in ("topk", "ef_signsgd", "terngrad", "qsgd", "one_bit_sgd")}
"""Recordings that are not of the authors' own program, and whose they are: the README of `fixtures` says it."""


@cache
def marks() -> dict[str, set[str]]:
    """The recordings that marked tests read, by technique; an empty name is a test without one."""
    found: dict[str, set[str]] = {}
    for text in map(Path.read_text, HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(text)) if "pytest.mark.evidence" in text else ():
            for name, recording in _marks_of(node):
                found.setdefault(name, set()).add(recording)
    return found


def _marks_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.evidence":
                given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
                yield ast.literal_eval(mark.args[0]), given.get("recording", "")


def declared() -> list[Entry]:
    """The library's own techniques that declare more than that they do what a paper says."""
    own = (entry for entry in registry.entries() if entry.module.startswith("laconic."))
    return [entry for entry in own if entry.reproduces or entry.holds]


def test_what_is_declared_is_what_tests_bear() -> None:
    assert {entry.name for entry in declared()} == marks().keys(), "declare what tests show, and test what is declared"


@pytest.mark.parametrize("entry", declared(), ids=lambda entry: entry.name)
def test_a_recording_is_named_and_read_where_the_evidence_is_one_and_only_there(entry: Entry) -> None:
    file = re.match(r"[\w.]+\.(npz|json)", entry.reproduces)
    if entry.evidence in RECORDED:
        assert file and marks()[entry.name] == {file[0]}, f"no test of {entry.name} reads what it reproduces"
    else:
        assert file is None and marks()[entry.name] == {""}


@pytest.mark.parametrize("entry", declared(), ids=lambda entry: entry.name)
def test_a_recording_of_another_implementation_says_whose(entry: Entry) -> None:
    whose = next((owner for file, owner in THIRD_PARTIES.items() if entry.reproduces.startswith(file)), "")
    assert (entry.evidence is Evidence.THIRD_PARTY) == bool(whose)
    assert whose in entry.reproduces


@pytest.mark.parametrize("entry", [e for e in declared() if e.evidence in RECORDED], ids=lambda entry: entry.name)
def test_the_settings_that_give_recorded_numbers_are_named(entry: Entry) -> None:
    """As words or sentences that can be written; a function has no settings of its own."""
    settings = re.findall("`(.+?)`", entry.reproduces)
    assert settings or entry.kind == "function"
    for text in settings:
        FederatedStrategy.parse(text) if entry.axis == "federated" else Strategy.parse(text)


def test_the_recordings_in_the_folder_that_are_graces_are_those_known_here() -> None:
    page = FOLDER / "fixtures" / "README.md"
    if not page.is_file():
        pytest.skip(f"{page} is not here: set LACONIC_DATA to the folder with the recordings")
    (heading,) = re.findall("^## GRACE: (.*)$", page.read_text(), re.MULTILINE)
    assert set(heading.split(", ")) == THIRD_PARTIES.keys()
