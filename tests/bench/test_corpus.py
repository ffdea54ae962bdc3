"""The frozen text: nothing twice, whole packages held out, and the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.corpus import END, Text, Unfamiliar, frozen, held_out, installed, read, standard_library, texts, write


def source(name: str, lines: int = 20, changed: int = 0) -> bytes:
    """A source with lines that no other name has, of which the first few are changed."""
    made = [
        f"value_{name}_{i} = compute_something_of({name!r}, {i}, {'new' if i < changed else 'old'!r})"
        for i in range(lines)
    ]
    return ("\n".join(made) + "\n").encode()


def test_a_text_most_of_which_was_seen_is_left_out() -> None:
    unfamiliar = Unfamiliar()
    assert unfamiliar.passes(Text("a", source("a")))
    assert not unfamiliar.passes(Text("b", source("a")))
    assert not unfamiliar.passes(Text("b", source("a", changed=9)))
    assert not unfamiliar.passes(Text("b", source("a").replace(b"value", b"    value"))), "indented"
    assert unfamiliar.passes(Text("b", source("a", changed=12)))
    assert not unfamiliar.passes(Text("c", b"x = 1\n" * 200)), "it has no line of some length"


def test_whole_packages_are_held_out_whatever_their_order() -> None:
    found = [Text(f"p{k % 13}", source(f"s{k}")) for k in range(130)]
    one, other = frozen(found, 10**9, 0.2), frozen(sorted(found, key=lambda text: text.package), 10**9, 0.2)
    assert set(one.outside) == set(other.outside) and 1 <= len(one.outside) <= 5
    assert 0.2 <= len(one.validation) / (len(one.training) + len(one.validation)) <= 0.4
    for text in found:
        inside = text.package in one.outside
        assert (text.content + END in one.validation) == inside and (text.content + END in one.training) != inside
    assert one.leaked == 0


def test_lines_of_held_out_packages_in_the_training_text_are_counted() -> None:
    outside = held_out(dict.fromkeys("pqrs", 100), 0.5)
    shared = source("shared", 5)
    found = [Text(name, source(name, 15) + shared) for name in "pqrs"]
    corpus = frozen(found, 10**9, 0.5)
    assert set(corpus.outside) == outside and len(outside) == 2
    assert corpus.leaked == pytest.approx(5 / (15 + 15 + 5))


def test_a_package_that_would_be_most_of_what_is_held_out_is_not_among_it() -> None:
    for k in range(20):
        assert held_out({f"large{k}": 840, "a": 40, "b": 50, "c": 70}, 0.1) == {"a", "b"}


def test_it_ends_before_the_size_and_reads_back(tmp_path: Path) -> None:
    found = [Text(f"p{k}", source(f"s{k}")) for k in range(40)]
    corpus = frozen(found, 20_000)
    assert 15_000 < len(corpus.training) + len(corpus.validation) <= 20_000
    write(corpus, tmp_path / "corpus.xz")
    (tmp_path / "corpus.json").write_text(json.dumps(corpus.facts))
    assert read(tmp_path / "corpus.xz") == (corpus.training, corpus.validation)
    (tmp_path / "corpus.json").write_text(json.dumps(corpus.facts | {"sha256": "0" * 64}))
    with pytest.raises(SystemExit, match="build it again"):
        read(tmp_path / "corpus.xz")


def test_sources_are_read_by_package_without_copies_of_others(tmp_path: Path) -> None:
    for name in ("ast.py", "json/decoder.py", "site-packages/other.py", "json/_vendor/copy.py", "short.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x = 1\n" if name == "short.py" else source(name))
    (tmp_path / "latin.py").write_bytes(source("latin") + b"# \xe9\n")
    found = list(texts(standard_library(tmp_path)))
    assert [text.package for text in found] == ["python ast", "python json"]
    assert {name for name, _ in installed(__import__("importlib.metadata").metadata.distributions())} >= {"pytest"}
