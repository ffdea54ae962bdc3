"""The page in a real browser: nothing fails, nothing is asked for, it fits a phone, its buttons do something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from laconic.report.page.page import write
from tests.report.page import samples
from tests.report.page.browser import Browser, browsing, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

LONG = "{matrix: powersgd(4), else: none} / allreduce(rank) / mgwfbp_with_a_name_that_no_phone_is_wide_enough_for" * 2


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything a page can have, with names as long as they come."""
    folder = tmp_path_factory.mktemp("page")
    run = samples.write_run(folder / "run", [{"seconds": float(k), "loss": 2.0 / k} for k in (1, 2, 3)], log=LONG)
    samples.timeline().write(run / "trace.json")
    plan = samples.advice(samples.option("local(4)", 0.004), samples.option(LONG, 0.005), subject=LONG)
    rows = ("bsp", "local(period=4)", LONG)
    paths = [samples.write_plan(folder / "plan.json", plan), samples.write_comparison(folder / "c", rows), run]
    return write(paths, folder / "page.html")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (360, "light"), (360, "dark")])
def test_it_opens_without_a_complaint_or_a_request_and_fits(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    browser.show(page, width, scheme=scheme)
    assert browser.run("return document.querySelectorAll('section').length") == 4
    assert browser.run(
        "return document.documentElement.scrollWidth <= innerWidth && innerWidth === arguments[0]", width
    )
    assert browser.complaints() == []
    assert {address.partition(":")[0] for address in browser.requested()} <= {"file", "data"}


def test_the_browser_would_notice(browser: Browser, tmp_path: Path) -> None:
    """What the test above looks for is seen when it is there."""
    bad = tmp_path / "bad.html"
    bad.write_text("<body style='width:900px'><img src='http://127.0.0.1:9/x.png'><script>throw Error('no')</script>")
    browser.show(bad, 360)
    assert browser.run("return document.documentElement.scrollWidth > 360")
    assert any("no" in message for message in browser.complaints())
    assert "http://127.0.0.1:9/x.png" in browser.requested()


def test_light_and_dark_are_two_looks(browser: Browser, page: Path) -> None:
    looks = {}
    for scheme in ("light", "dark"):
        browser.show(page, scheme=scheme)
        looks[scheme] = browser.run("return getComputedStyle(document.body).backgroundColor"), browser.picture()
    assert looks["light"][0] != looks["dark"][0]
    assert looks["light"][1] != looks["dark"][1]


def test_text_is_readable_on_its_ground(browser: Browser, page: Path) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for running text, notes, warnings, links and figures that stand out."""
    script = """
        const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => (v /= 255) <= .04045
            ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
        const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            if (!c.endsWith(', 0)')) return c; } return 'rgb(255, 255, 255)'; };
        return ['h1', '.note', '.warn', '.kind', '.verdict', '.tiles small', 'dt', 'td', '.good', '.save', '.copy',
            'thead button'].map(s => [s, document.querySelector(s)]).filter(([s, e]) => e).map(([s, e]) => {
            const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
            return [s, (a + .05) / (b + .05)]; });
    """
    for scheme in ("light", "dark"):
        browser.show(page, scheme=scheme)
        found = browser.run(script)
        assert len(found) >= 11
        assert [name for name, contrast in found if contrast < 4.5] == []


def test_phones_get_pictures_of_their_own(browser: Browser, page: Path) -> None:
    count = (
        "return ['wide', 'narrow'].map(c => [...document.querySelectorAll('.' + c)].filter(e => e.offsetWidth).length)"
    )
    browser.show(page, 1200)
    wide, narrow = browser.run(count)
    assert wide > 5
    assert narrow == 0
    browser.show(page, 360)
    assert browser.run(count) == [0, wide]


def test_a_link_saves_the_table(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.show(page)
    browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    file, table = tmp_path / "comparison-1.csv", (page.parent / "c" / "table.csv").read_text()
    link = "document.querySelector('a[download=\"comparison-1.csv\"]')"
    href = browser.run(f"{link}.click(); return {link}.href")
    assert unquote(href.partition(",")[2]) == table
    for _ in range(3000):  # the browser writes on its own time; each look asks it something
        if file.exists() and file.read_text() == table:
            break
        browser.run("return 0")
    assert file.read_text() == table


def test_headings_sort_by_number(browser: Browser, page: Path) -> None:
    browser.show(page)
    order = """
        const table = document.querySelector('#comparison-1 table'), head = table.querySelectorAll('thead th')[1];
        head.querySelector('button').click();
        return [head.getAttribute('aria-sort'), ...[...table.tBodies[0].rows].map(row => row.cells[0].textContent)];
    """
    assert browser.run(order) == ["ascending", LONG, "local(period=4)", "bsp"]
    assert browser.run(order) == ["descending", "bsp", "local(period=4)", LONG]


def test_the_line_can_be_copied(browser: Browser, page: Path) -> None:
    browser.show(page)
    browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.devtools("Page.bringToFront")
    browser.run("document.querySelector('.copy').focus(); document.querySelector('.copy').click()")
    message = None
    for _ in range(2000):
        message = browser.run("return document.querySelector('.copy').textContent")
        if message == "Copied":
            break
    assert message == "Copied"
    assert browser.run("return navigator.clipboard.readText()") == 'laconic run --strategy "local(4)" train.py'


def test_a_timeline_zooms_within_its_box(browser: Browser, page: Path) -> None:
    browser.show(page)
    width = "return document.querySelector('.lanes').getBoundingClientRect().width"
    before = browser.run(width)
    browser.run("document.querySelector('.zoom[data-zoom=\"2\"]').click()")
    assert browser.run(width) == pytest.approx(2 * before)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    bad = samples.HOSTILE
    paths = [
        samples.write_plan(
            tmp_path / "plan.json", samples.advice(samples.option(bad, 0.004), subject=bad, verdict=bad)
        ),
        samples.write_comparison(tmp_path / "c", ("bsp", bad)),
        samples.write_run(tmp_path / "r", [{"seconds": 1.0, bad: 2.0}], log=bad, strategy=bad),
    ]
    browser.show(write(paths, tmp_path / "page.html"))
    assert browser.run("return document.title") == f"laconic: {bad}"
    assert browser.run("return document.images.length + document.scripts.length") == 1
    assert browser.complaints() == []
