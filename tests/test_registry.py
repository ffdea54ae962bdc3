"""A technique announces itself once, is found whatever the spelling, and cannot hold a wrong value."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pytest

from laconic import registry
from laconic.errors import LaconicError, StrategyError
from laconic.registry import Evidence, Technique, knob, named_sentence, technique


@pytest.fixture(autouse=True)
def own_words() -> Iterator[None]:
    with registry.temporary(empty=True):
        yield


class Toy(Technique):
    axis: ClassVar[str] = "compression"


def register_topk() -> type[Technique]:
    @technique(
        "topk",
        paper="Aji and Heafield, 2017",
        aliases=["top_k_sparse"],
        claims=["exact"],
        evidence="published",
        reproduces="Table 1",
    )
    @dataclass(frozen=True)
    class TopK(Toy):
        """Keep the largest.

        The rest stays home.
        """

        ratio: float = knob(0.01, above=0, high=1, doc="share that is sent")
        count: int | None = knob(None, low=1)
        mode: str = knob("exact", choices=("exact", "sampled"))
        sort: bool = False
        layers: tuple[int, ...] = knob((), low=0)
        chunk_bytes: int = knob(2**20, below=2**40)

    return TopK


def test_an_entry_holds_what_was_declared() -> None:
    word = register_topk()
    entry = registry.find("topk")
    assert (entry.name, entry.axis, entry.kind, entry.target) == ("topk", "compression", "word", word)
    assert entry.evidence is Evidence.PUBLISHED
    assert entry.summary == "Keep the largest."
    assert entry.doc.endswith("The rest stays home.")
    assert entry.module == __name__
    assert word.name == "topk"


@pytest.mark.parametrize("name", ["topk", "TopK", "top_k", "TOP-K", "top k", "TopKSparse"])
def test_names_match_whatever_their_case_and_underscores(name: str) -> None:
    register_topk()
    assert registry.find(name).name == "topk"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    register_topk()
    with pytest.raises(StrategyError, match="no technique is called topkk; write topk"):
        registry.find("topkk")
    with pytest.raises(StrategyError, match="laconic list"):
        registry.find("zzzzzz")


def test_find_can_insist_on_an_axis() -> None:
    register_topk()
    assert registry.find("topk", ["compression"]).name == "topk"
    with pytest.raises(StrategyError, match="topk belongs to compression, not to sync"):
        registry.find("topk", ["sync"])


def test_knob_values_take_the_type_of_their_field() -> None:
    word = register_topk()
    made = word(ratio=1, count=8.0, layers=[1, 2.0], chunk_bytes=np.int64(4))  # type: ignore[call-arg]
    assert repr(made).endswith("(ratio=1.0, count=8, mode='exact', sort=False, layers=(1, 2), chunk_bytes=4)")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"ratio": 2}, r"topk cannot take ratio=2: ratio is a number, above 0 and at most 1; write topk\(ratio=0.01\)"),
        ({"ratio": 0}, "above 0"),
        ({"ratio": math.nan}, "ratio=nan"),
        ({"ratio": True}, "ratio=true"),
        ({"ratio": "half"}, "ratio=half"),
        ({"ratio": 10**400}, "above 0 and at most 1"),
        ({"count": 2.5}, r"count is a whole number or none, at least 1; write topk\(count=1\)"),
        ({"count": True}, "count=true"),
        ({"count": 0}, "at least 1"),
        ({"count": math.inf}, "count=inf"),
        ({"count": 2**63}, "a whole number"),
        ({"mode": "fast"}, r"mode=fast: mode is one of exact, sampled; write topk\(mode=exact\)"),
        ({"mode": None}, "mode=none: mode is one of exact, sampled"),
        ({"sort": 1}, r"sort is true or false; write topk\(sort=false\)"),
        ({"layers": (1, -1)}, "a list, each a whole number, at least 0"),
        ({"layers": 3}, "a list"),
        ({"chunk_bytes": 2**40}, r"below 1099511627776; write topk\(chunk_bytes=1MiB\)"),
    ],
)
def test_a_wrong_value_cannot_exist(arguments: dict[str, object], rule: str) -> None:
    with pytest.raises(StrategyError, match=rule):
        register_topk()(**arguments)


def test_a_technique_that_is_no_word_may_hold_other_things() -> None:
    @dataclass(frozen=True)
    class Wrapper(Toy):
        inner: Technique
        times: int = knob(1, low=1)

    inner = register_topk()()
    assert Wrapper(inner).inner is inner
    with pytest.raises(StrategyError, match=r"Wrapper cannot take times=0.*write Wrapper\(times=1\)"):
        Wrapper(inner, 0)


def test_duplicates_are_refused_naming_both_places() -> None:
    register_topk()
    with pytest.raises(LaconicError, match=r'"Top_K" of .*Other is already the name of .*TopK; rename'):

        @technique("Top_K", paper="-")
        @dataclass(frozen=True)
        class Other(Toy):
            """Another."""

    with pytest.raises(LaconicError, match=rf'"top_k_sparse" of {__name__}.whole is already the name of .*TopK'):
        named_sentence("whole", "topk", axis="sync", paper="-", doc="All.", aliases=["top_k_sparse"])
    assert [entry.name for entry in registry.entries()] == ["topk"]


def test_a_module_that_is_imported_again_replaces_its_words() -> None:
    register_topk()
    again = register_topk()
    assert registry.find("topk").target is again


def test_a_sentence_defined_twice_must_say_the_same() -> None:
    for _ in range(2):
        named_sentence("whole", "topk", axis="sync", paper="-", doc="All.")
    with pytest.raises(LaconicError, match="rename one of them"):
        named_sentence("whole", "none", axis="sync", paper="-", doc="All.")


def test_functions_are_registered_under_their_axis() -> None:
    @technique("a_bound", paper="Stich, ICLR 2019", axis="theory")
    def bound(steps: int) -> float:
        """How far local SGD can drift."""
        return 1 / steps

    assert registry.find("a_bound").kind == "function"
    assert bound(2) == 0.5


def test_a_word_has_no_reason_to_be_none() -> None:
    with pytest.raises(LaconicError, match="can stand in a sentence"):

        @technique("said", paper="-", why_no_word="It cannot be said.")
        @dataclass(frozen=True)
        class Said(Technique):
            """A word."""

            axis: ClassVar[str] = "sync"


def test_registration_mistakes_say_what_to_write() -> None:
    def bare() -> None: ...

    def result() -> None:
        """Told."""

    with pytest.raises(LaconicError, match="has no docstring; write one"):
        technique("bare", paper="-", axis="theory")(bare)
    with pytest.raises(LaconicError, match='on the axis ""; write one of sync'):
        technique("told", paper="-")(result)
    with pytest.raises(LaconicError, match='"rumour" is no evidence; write one of fixture, third-party, published'):
        technique("told", paper="-", axis="theory", evidence="rumour")(result)
    with pytest.raises(LaconicError, match='evidence "published" and reproduces ""; say what is reproduced'):
        technique("told", paper="-", axis="theory", evidence="published")(result)
    with pytest.raises(LaconicError, match='evidence "mechanism" and reproduces "Table 1"'):
        technique("told", paper="-", axis="theory", reproduces="Table 1")(result)
    with pytest.raises(LaconicError, match='evidence "modelled" and reproduces "Table 1"'):
        technique("told", paper="-", axis="theory", evidence="modelled", reproduces="Table 1", holds="h")(result)
    with pytest.raises(LaconicError, match="is modelled and holds nothing; say which of its formulas are tested"):
        technique("told", paper="-", axis="theory", evidence="modelled")(result)
    with pytest.raises(LaconicError, match="use letters, digits and underscores"):
        technique("1bit", paper="-", axis="theory")(result)
    with pytest.raises(LaconicError, match="has no docstring"):
        technique("silent", paper="-")(dataclass(frozen=True)(type("Silent", (Toy,), {})))
    with pytest.raises(LaconicError, match=r"put @dataclass\(frozen=True\) below @technique"):
        technique("plain", paper="-")(type("Plain", (Toy,), {"__doc__": "Plain."}))

    with pytest.raises(LaconicError, match=r"no sentence can write inner of .*annotate knobs"):

        @technique("wrapper", paper="-")
        @dataclass(frozen=True)
        class Wrapper(Toy):
            """Wraps."""

            inner: Technique

    assert registry.entries() == ()


def test_entries_come_by_axis_and_name_each_once() -> None:
    register_topk()
    named_sentence("b", "topk", axis="sync", paper="-", doc="B.")
    named_sentence("a", "topk", axis="sync", paper="-", doc="A.", aliases=["first"])
    assert [entry.name for entry in registry.entries()] == ["a", "b", "topk"]
    assert [entry.name for entry in registry.entries("sync")] == ["a", "b"]


def test_temporary_undoes_its_registrations() -> None:
    with registry.temporary():
        register_topk()
        assert registry.entries()
    assert registry.entries() == ()


def test_plug_ins_are_loaded_and_a_broken_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("fine", "math", "laconic.techniques"),
        EntryPoint("broken", "no_such_module", "laconic.techniques"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.load.cache_clear()
    with pytest.raises(LaconicError, match=r"the plug-in broken \(no_such_module\) fails on import.*uninstall"):
        registry.entries()
    points.pop()
    assert registry.entries() == ()
    registry.load.cache_clear()


def test_a_sentence_imports_no_policy_of_clusters_and_a_policy_is_found() -> None:
    ask = (
        "import sys; from laconic import registry; from laconic.strategy import Strategy\n"
        "Strategy.parse('bsp / topk(0.01)+ef / allreduce')\n"
        "print(sum(name.startswith('laconic.cluster') for name in sys.modules))\n"
        "registry.entries('sync'); print(sum(name.startswith('laconic.cluster') for name in sys.modules))\n"
        "print(registry.find('tiresias').axis)"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "cluster"]


def test_policies_are_imported_where_all_entries_are_asked_for() -> None:
    registry.load_rarely_written.cache_clear()
    registry.entries("sync")
    assert registry.load_rarely_written.cache_info().currsize == 0
    registry.entries()
    assert registry.load_rarely_written.cache_info().currsize == 1
