"""Text stays text, tables are tables, and what a link saves is the table."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laconic.report.page.html import Cell, Column, Markup, as_csv, el, escape, facts, prose, table
from tests.report.page.reading import parsed, saved
from tests.report.page.samples import HOSTILE

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
printable = st.text().filter(lambda text: "\x1b" not in text)


@pytest.mark.long
@given(printable)
@example(HOSTILE)
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_as_that_text_alone(text: str) -> None:
    page = parsed(el("p", text, title=text))
    (paragraph,) = page.children
    shown = _CONTROL.sub("\ufffd", text)
    assert not isinstance(paragraph, str)
    assert paragraph.text == shown
    assert paragraph.attributes == {"title": shown}
    assert all(isinstance(child, str) for child in paragraph.children)


def test_colours_of_a_terminal_are_dropped() -> None:
    assert escape("\x1b[1;31mbad\x1b[0m news\x07") == "bad news\ufffd"


def test_markup_is_not_escaped_twice_and_empty_attributes_are_left_out() -> None:
    made = el("a", el("b", "1 < 2"), None, href="?a&b", title=None, hidden=True, open=False)
    assert made == '<a href="?a&amp;b" hidden><b>1 &lt; 2</b></a>'
    assert isinstance(made, Markup)


def test_a_table_has_heads_for_columns_and_rows_and_saves_its_numbers() -> None:
    content = as_csv(["strategy", "seconds"], [["a, b", 0.123456789], ["c", None], ["d", float("nan")]])
    rows = [
        [Cell("a, b", 0), Cell("123 ms", 0.123456789, "good")],
        [Cell("c", 1), Cell("–")],
        [Cell("d", 2), Cell("–")],
    ]
    page = parsed(table("Things", [Column("strategy", "code"), Column("step (ms)")], rows, content, "things.csv"))
    assert page.all("caption")[0].text == "Things"
    assert [head.attributes["scope"] for head in page.all("th")] == ["col", "col", "row", "row", "row"]
    assert page.all("table")[0].rows() == [["strategy", "step (ms)"], ["a, b", "123 ms"], ["c", "–"], ["d", "–"]]
    assert [cell.attributes.get("data-key") for cell in page.all("td")] == ["0.123456789", None, None]
    (link,) = page.all("a", "save")
    assert link.attributes["download"] == "things.csv"
    assert list(csv.reader(io.StringIO(saved(link)))) == [
        ["strategy", "seconds"], ["a, b", "0.123456789"], ["c", ""], ["d", ""],
    ]  # fmt: skip


def test_backticks_are_code_and_an_odd_one_is_a_backtick() -> None:
    assert prose("use `a<b` now") == "use <code>a&lt;b</code> now"
    assert prose("a ` alone") == "a ` alone"


def test_facts_without_a_value_are_left_out() -> None:
    page = parsed(facts([("workers", "4"), ("target", None), ("machine", "")]))
    assert [term.text for term in page.all("dt")] == ["workers"]
