"""HTML built by nested calls: whatever is not `Markup` is escaped, so that no text of a run acts as HTML.

`Markup` is a bare subclass of str; with MarkupSafe's, which saves four lines, a page took 2 to 13 % longer to render.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

_VOID = frozenset({"meta", "link", "input", "br", "rect", "circle", "line", "path", "polygon", "use", "col"})
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and cursor moves in logs
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


Child = str | float | None


def escape(text: object) -> Markup:
    """Return plain text as HTML; terminal colours are dropped, other control characters are made visible."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", _TERMINAL.sub("", str(text)))))


def join(parts: Iterable[Child]) -> Markup:
    """Return the parts one after another, each escaped where it is not Markup; None is left out."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def el(tag: str, *children: Child, **attributes: Child | bool) -> Markup:
    """Return an element; `class_` becomes class, `aria_label` aria-label, and None or False leave an attribute out."""
    given = "".join(_attribute(name, value) for name, value in attributes.items() if value is not None)
    inner = join(children)
    if tag in _VOID and not inner:
        return Markup(f"<{tag}{given}/>")
    return Markup(f"<{tag}{given}>{inner}</{tag}>")


def _attribute(name: str, value: Child | bool) -> str:
    if value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(compact(value) if isinstance(value, float) else value)}"'


def compact(number: float) -> str:
    """Return a coordinate with at most two digits after the point and without trailing zeros."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, the key its column is sorted by, a CSS class and a tool tip."""

    shown: str
    key: float | None = None
    mark: str | None = None  # a class: "good", "bad", "quiet"
    about: str | None = None


@dataclass(frozen=True)
class Column:
    """A table column: numbers are aligned right, code is set in a monospaced font."""

    heading: str
    kind: str = "number"  # or "text", "code"
    about: str | None = None


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], csv_content: str, filename: str
) -> Markup:
    """Return a table in a scrolling box, sortable by its headings, with a link that saves it as CSV."""
    heads = [
        el("th", el("button", column.heading, type="button", title=column.about), scope="col", class_=column.kind)
        for column in columns
    ]
    lines = [
        el("tr", *(_cell(column, cell, place) for place, (column, cell) in enumerate(zip(columns, row, strict=True))))
        for row in rows
    ]
    body = join([el("caption", caption), el("thead", el("tr", *heads)), el("tbody", *lines)])
    box = el("div", el("table", body), class_="scroll", tabindex="0", role="region", aria_label=f"Table: {caption}")
    return el("div", box, save(csv_content, filename), class_="table")


def _cell(column: Column, cell: Cell, place: int) -> Markup:
    inner: Child = el("code", cell.shown) if column.kind == "code" else cell.shown
    classes = " ".join(filter(None, (column.kind, cell.mark)))
    key = None if cell.key is None else f"{cell.key:.9g}"
    if place == 0:
        return el("th", inner, scope="row", class_=classes, data_key=key, title=cell.about)
    return el("td", inner, class_=classes, data_key=key, title=cell.about)


def save(content: str, filename: str, label: str = "CSV") -> Markup:
    """Return a link that contains the file itself, as a data URL, and saves it."""
    target = "data:text/csv;charset=utf-8," + quote(content, safe=",.-_/:()")
    label_text = f"Save as {filename}"
    return el("a", f"{label} ↓", class_="save", href=target, download=filename, title=label_text, aria_label=label_text)


def as_csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV with numbers unrounded; None and NaN become empty fields."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([["" if value is None or value != value else value for value in row] for row in rows])
    return out.getvalue()


def facts(entries: Iterable[tuple[str, Child]]) -> Markup:
    """Return a list of names and values; entries without a value are left out."""
    found = [
        el("div", el("dt", name), el("dd", value), class_="whole" if name == "command" else None)
        for name, value in entries
        if value not in (None, "")
    ]
    return el("dl", *found, class_="facts")


def prose(text: str) -> Markup:
    """Return a sentence as HTML in which text between backticks is set as code."""
    parts = text.split("`")
    whole = parts if len(parts) % 2 else [text]
    return join(el("code", part) if place % 2 else part for place, part in enumerate(whole))


def tiles(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """Return a row of key figures from (figure, what it is, a remark on it)."""
    made = [
        el("li", el("strong", figure), el("span", what), el("small", about) if about else None)
        for figure, what, about in entries
    ]
    return el("ul", *made, class_="tiles") if made else Markup("")
