"""Techniques from outside: classes by their place, objects in a strategy, files that every process is extended by."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import laconic.extend
from laconic import registry
from laconic.compression.none import Identity
from laconic.errors import LaconicError, StrategyError
from laconic.extend import Compressor, Exchange, Outcome, State, TensorSpec, knob, technique
from laconic.language.word import Word
from laconic.strategy import Sentence, Strategy
from laconic.worker import Meet


@dataclass(frozen=True)
class Whole(Compressor):
    """The mean, as it is."""

    scale: float = knob(1.0, above=0, doc="a factor")

    def exchange(self, x: object, state: State, meet: Meet) -> Exchange:
        return Outcome((yield meet.mean(x)), state)  # type: ignore[arg-type]

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.nbytes


FILE = '''
from dataclasses import dataclass
from laconic.extend import Compressor, Outcome, knob, technique

@dataclass(frozen=True)
class Mine(Compressor):
    """The mean, as it is."""
    scale: float = knob(1.0, above=0, doc="a factor")
    def exchange(self, x, state, meet):
        return Outcome((yield meet.mean(x)), state)
    def payload_bytes(self, spec, size):
        return spec.nbytes
'''

REGISTERED = '''
@technique("of_the_file", paper="here")
@dataclass(frozen=True)
class Registered(Mine):
    """The mean, under a name."""
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of techniques, as the current one; what is registered in a test is gone after it."""
    (tmp_path / "outside.py").write_text(FILE)
    (tmp_path / "registers.py").write_text(FILE + REGISTERED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.EXTENSIONS, "")
    return tmp_path


def test_a_class_in_a_file_is_a_word(folder: Path) -> None:
    strategy = Strategy.parse("bsp / outside.py:Mine(0.5)+ef")
    assert isinstance(strategy, Sentence)
    assert str(strategy) == "bsp / outside.py:Mine(0.5)+error_feedback / allreduce"
    assert Strategy.parse(str(strategy)) == strategy
    assert strategy.compression[0].make().scale == 0.5
    assert Strategy.parse("{matrix:bf16, else:outside.py:Mine}") == Strategy.parse(
        "{matrix: bf16, else: outside.py:Mine}"
    )


def test_an_object_of_a_class_that_nobody_registered_can_stand_in_a_strategy() -> None:
    strategy = Sentence.of(Word("local"), (Whole(0.5), Word("ef")))
    assert Strategy.parse(str(strategy)) == strategy
    assert strategy.compression[0].name == "tests.test_extend:Whole"
    assert Strategy.parse(Whole(0.5)) == Sentence.of(Whole(0.5))
    assert Word.of(Identity()) == Word("none")


def test_what_no_other_process_could_import_is_refused() -> None:
    @dataclass(frozen=True)
    class Local(Whole):
        """Inside a function."""

    with pytest.raises(StrategyError, match="top level of a module"):
        Strategy.parse(Local())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bsp / nowhere.py:Mine", "there is no file nowhere.py"),
        ("bsp / outside.py:Yours", "has no class Yours"),
        ("bsp / outside.py:technique", "is no class"),
        ("bsp / outside.py:Outcome", "is no word"),
        ("bsp / no_package.codecs:Mine", "cannot be imported .ModuleNotFoundError"),
        ("bsp / broken.py:Mine", "fails when it is imported .ZeroDivisionError: division by zero"),
        ("bsp / outside.py:Mine(-1)", "scale is a number, above 0"),
    ],
)
def test_what_is_wrong_at_a_place_is_said(folder: Path, text: str, says: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(LaconicError, match=says):
        Strategy.parse(text)


def test_a_file_extends_this_process_and_those_that_it_starts(folder: Path) -> None:
    ask = "from laconic import registry; print(registry.find('of_the_file').module)"
    with registry.temporary():
        registry.extend("registers.py")
        assert registry.find("of_the_file").doc == "The mean, under a name."
        registry.extend("registers.py")  # a second time changes nothing
        child = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert child.stdout == "registers\n"


@pytest.mark.long
def test_a_script_shares_the_codec_that_it_imports_and_is_not_run_a_second_time_for_its_own(folder: Path) -> None:
    (folder / "train.py").write_text(
        FILE
        + "print('runs')\nimport outside\nfrom laconic.strategy import Strategy\n"
        + "assert Strategy.parse('bsp / outside.py:Mine').compression[0].technique is outside.Mine\n"
        + "print(Strategy.parse(str(Strategy.parse(Mine()))))\n"
    )
    done = subprocess.run([sys.executable, "train.py"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["runs", "bsp / train.py:Mine / allreduce"]


def test_everything_an_author_needs_is_in_one_module() -> None:
    assert all(hasattr(laconic.extend, name) for name in laconic.extend.__all__)
    assert technique is registry.technique
