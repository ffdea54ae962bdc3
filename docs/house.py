"""Draw the packages of laconic and their imports: `docs/house.svg`, and the tables in `docs/design.md` and
`CONTRIBUTING.md`.

    python docs/house.py            # write
    python docs/house.py --check    # exit code 1 where a file is not what it would write

The order of the rows is the contract in `pyproject.toml` that `make lint` checks; arrows are read from the imports
themselves, and what a package is for from its docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "laconic"
PICTURE = ROOT / "docs" / "house.svg"
PAGES = (ROOT / "docs" / "design.md", ROOT / "CONTRIBUTING.md")
BEGIN, END = "<!-- rooms: written by `python docs/house.py` -->", "<!-- end of rooms -->"
HIDDEN = {"__main__", "_version"}
GROUND = "strategy"
"""The first row of the ground floor, which every room may import: drawn as one box, without arrows."""
WIDTH, BOX, GAP, TOP = 900, 30, 26, 14


@dataclass(frozen=True)
class Room:
    """A package, or a module that stands beside the packages."""

    name: str
    purpose: str


def layers() -> list[list[str]]:
    """Return the rows of the contract, uppermost first; packages that do not exist yet are left out."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    found = [[name.strip(" ()") for name in row.split("|")] for row in rows]
    kept = [[name for name in row if name not in HIDDEN and _files(name)] for row in found]
    return [row for row in kept if row]


def _files(name: str) -> list[Path]:
    module = SOURCE / f"{name}.py"
    return [module] if module.exists() else sorted((SOURCE / name).rglob("*.py"))


def room(name: str) -> Room:
    files = _files(name)
    head = files[0] if len(files) == 1 else SOURCE / name / "__init__.py"
    doc = ast.get_docstring(ast.parse(head.read_text(encoding="utf-8"))) or ""
    return Room(name, " ".join(doc.split("\n\n")[0].split()))


def arrows() -> nx.DiGraph:
    """Return the imports between rooms."""
    imports = grimp.build_graph("laconic", cache_dir=None)
    shown = {name for row in layers() for name in row}
    graph = nx.DiGraph()
    graph.add_nodes_from(shown)
    for importer in imports.modules:
        for imported in imports.find_modules_directly_imported_by(importer):
            source, target = (module.split(".")[1] if "." in module else "" for module in (importer, imported))
            if source != target and {source, target} <= shown:
                graph.add_edge(source, target)
    return graph


# ---------------------------------------------------------------------------------------------- the picture


def picture(graph: nx.DiGraph) -> str:
    """Return the drawing: a row for each layer, and an arrow wherever no longer way of arrows says the same."""
    rows = layers()
    ground = next(k for k, row in enumerate(rows) if GROUND in row)
    upper, base = rows[:ground], [name for row in rows[ground:] for name in row]
    places = dict(_places(upper))
    height = TOP + (len(upper) + 1) * (BOX + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#8a94a6"/></marker></defs>',
    ]
    for source, target in sorted(nx.transitive_reduction(graph.subgraph(places)).edges):
        (x1, y1, _), (x2, y2, _) = places[source], places[target]
        bend, aside = (
            (y2 - y1 - BOX) / 2,
            150 if x1 == x2 and y2 - y1 > 2 * (BOX + GAP) else 0,
        )  # around what is between
        curve = f"M{x1} {y1 + BOX} C{x1 - aside} {y1 + BOX + bend} {x2 - aside} {y2 - bend} {x2} {y2 - 2}"
        parts.append(f'<path d="{curve}" fill="none" stroke="#8a94a6" marker-end="url(#a)"/>')
    for row in upper:
        for name in row:
            parts += _box(room(name), *places[name])
    parts += _box(
        Room(" · ".join(base), "Every room may import these."), WIDTH // 2, TOP + len(upper) * (BOX + GAP), WIDTH - 40
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(rows: list[list[str]]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield each room with the middle of its box, its upper edge and its width; rows lean left and right in turn, so
    that arrows past a row are seen."""
    for k, row in enumerate(rows):
        width = min(240, (WIDTH - 40) // len(row) - 20)
        lean = 0 if len(row) > 2 else (-1, 1)[k % 2] * 140
        left = WIDTH // 2 + lean - len(row) * (width + 20) // 2
        for n, name in enumerate(row):
            yield name, (left + n * (width + 20) + (width + 20) // 2, TOP + k * (BOX + GAP), width)


def _box(found: Room, x: int, y: int, width: int) -> list[str]:
    left = x - width // 2
    title = f"<title>{escape(found.purpose)}</title>"
    return [
        f'<g><rect x="{left}" y="{y}" width="{width}" height="{BOX}" rx="6" fill="#eef3fb" stroke="#3b5b92"/>{title}',
        f'<text x="{x}" y="{y + 20}" text-anchor="middle" font-size="15" fill="#1d2b45">{found.name}</text></g>',
    ]


# ---------------------------------------------------------------------------------------------- the table


def table(graph: nx.DiGraph) -> str:
    """Return the rooms as a table, uppermost first."""
    order = {name: k for k, name in enumerate(name for row in layers() for name in row)}
    lines = ["| room | what it is for | imports |", "| --- | --- | --- |"]
    for name in order:
        below = sorted(graph.successors(name), key=order.__getitem__)
        suffix = "/" if (SOURCE / name).is_dir() else ".py"
        imports = ", ".join(f"`{other}`" for other in below if other != "errors")
        lines.append(f"| `{name}{suffix}` | {room(name).purpose} | {imports} |")
    return "\n".join(lines)


def written() -> dict[Path, str]:
    """Return every file that this command writes, with its text."""
    graph = arrows()
    found = {PICTURE: picture(graph)}
    for page in PAGES:
        text, block = page.read_text(encoding="utf-8"), f"{BEGIN}\n{table(graph)}\n{END}"
        found[page] = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _, block=block: block, text, flags=re.S)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a file is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in written().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python docs/house.py", file=sys.stderr)
        return int(bool(stale))
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
