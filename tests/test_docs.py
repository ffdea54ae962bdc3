"""Generated pages are what the registry says today, and nothing that is registered is left out of them."""

from __future__ import annotations

import inspect
import re
import runpy
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from laconic import registry

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = tomllib.loads((ROOT / "bench" / "compressors.toml").read_text())
ROWS = {name: given for members in FAMILIES.values() for name, given in members.items() if isinstance(given, dict)}


def test_pages_of_families_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    folder = ROOT / "docs" / "compression"
    stale = [name for name, text in made.items() if (folder / name).read_text() != text]
    assert not stale, "run python docs/generate.py"


API = runpy.run_path(str(ROOT / "docs" / "api.py"))


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == API["page"](), "run python docs/api.py"


@pytest.mark.parametrize("name", API["public"]())
def test_every_public_parameter_is_documented(name: str) -> None:
    """Whatever stands in `laconic.__all__` names each parameter in its docstring, in backticks."""
    value = API["public"]()[name]
    doc = inspect.getdoc(value) or ""
    assert doc.strip(), f"laconic.{name} has no docstring"
    missing = [given for given in API["parameters"](value) if f"`{given}`" not in doc]
    assert not missing, f"the docstring of laconic.{name} does not say what these are: {', '.join(missing)}"


def test_every_technique_of_compression_is_in_one_family_with_its_formula() -> None:
    own = [entry for entry in registry.entries("compression") if entry.module.startswith("laconic.")]
    known = {entry.name for entry in own if entry.kind != "function"} - {"none"}
    assert known <= ROWS.keys(), f"put {known - ROWS.keys()} into bench/compressors.toml"
    assert len(ROWS) == sum(len(members) - 1 for members in FAMILIES.values()), "a technique stands in two families"
    assert [entry.name for entry in own if not entry.formula] in ([], ["none"])


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_what_is_registered_is_counted_as_it_is() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "counts.py"))
    stale = [path.name for path, text in made["written"]().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/counts.py"
    grades = Counter(entry.evidence for entry in registry.entries() if entry.module.startswith("laconic."))
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {g: int(n) for g, n in re.findall(r"^- `([\w-]+)`, (\d+): ", page, re.MULTILINE)} == grades


def test_the_page_of_losses_shows_the_rows_that_are_shipped() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "losses.py"))["written"]()
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/losses.py"


def test_the_page_of_federated_rules_shows_the_rows_that_are_there() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "federated_cifar.py"))["written"]()
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/federated_cifar.py"


def test_the_rooms_are_drawn_as_they_are() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "house.py"))["written"]()
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/house.py"
