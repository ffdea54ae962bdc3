"""CONTRIBUTING's tutorial runs: every technique on the page keeps what it declares, and trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laconic import registry
from laconic.check.suite import check
from laconic.strategy import Sentence, Strategy

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
BLOCK = re.compile(r"<!-- run: (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def files() -> dict[str, str]:
    """The files that a reader has written at the end of the page."""
    found: dict[str, str] = {}
    for name, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        found[name] = found.get(name, "") + code + "\n\n"
    return found


def test_the_page_builds_one_of_each_kind() -> None:
    assert sorted(files()) == ["codecs.py", "rounds.py", "rules.py", "schedules.py", "selectors.py"]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(files()))
def test_what_the_page_builds_keeps_what_it_declares(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.EXTENSIONS, "")
    (tmp_path / f"tutorial_{name}").write_text(files()[name])
    with registry.temporary():
        checked = list(check(f"tutorial_{name}", real=False))
        assert len(checked) == files()[name].count("@technique")
        assert [f for one in checked for f in one.findings if not f.holds] == []


def test_every_class_of_the_page_has_at_most_60_lines() -> None:
    assert all(len(code.splitlines()) <= 60 for code in files().values())


def test_words_of_the_page_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.EXTENSIONS, "")
    with registry.temporary():
        for name, code in files().items():
            (tmp_path / f"together_{name}").write_text(code)
            registry.extend(f"together_{name}")
        text = "every_nth(2) / every_kth(0.1)+coin_levels+ef / allreduce / by_count(2)"
        strategy = Strategy.parse(text)
        assert isinstance(strategy, Sentence) and Strategy.parse(str(strategy)) == strategy
