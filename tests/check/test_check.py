"""`laconic check` finds what a technique declares and does not do, and nothing in one that keeps its word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.check import compressors
from laconic.check.finding import look
from laconic.check.suite import check, check_word
from laconic.cli.app import app
from laconic.compression.base import Compressor
from laconic.errors import LaconicError
from laconic.language.word import Word
from tests.check import lies

LIES = {
    lies.ScaleNotSent: "same bits",
    lies.SentTooLarge: "`sent` is what the others decode",
    lies.MemoryNotUpdated: "Every entry of the state changes",
    lies.WrongMeets: "among what `meets` stands for",
    lies.Rounded: "declares a `variance`",
    lies.VarianceTooSmall: "declares a `variance`",
    lies.ContractionTooLarge: "declares a `contraction`",
    lies.TooFewBytes: "are `payload_bytes`",
    lies.PricesDoNotAddUp: "are `payload_bytes`",
    lies.HiddenMemory: "from a saved state",
    lies.OwnDraws: "same bits",
    lies.OddSizes: "Every tensor that it accepts",
    lies.StateChangesShape: "The state has the entries",
    lies.ReplicasDrift: "the same parameters after every step",
    lies.ForgetsItsSteps: "saved half-way and resumed",
    lies.ExchangesMoreOften: "`stretches`",
    lies.LosesTensors: "A plan carries every element",
}


@pytest.mark.long
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_found(lie: type) -> None:
    made = lie()
    found = compressors.findings(made) if isinstance(made, Compressor) else check_word(Word.of(made), False).findings
    failed = [finding for finding in found if not finding.holds]
    assert any(LIES[lie] in finding.says for finding in failed), failed
    assert all(finding.counter_example for finding in failed)


def test_the_counter_example_is_the_smallest() -> None:
    (finding,) = look([compressors.exchanges_everything], lies.OddSizes())
    found = finding.counter_example
    assert found is not None and found.startswith("1 worker with normal values of shape [1] in float32: it raises")
    assert "lies.py" in found


def test_nothing_is_found_in_what_keeps_its_word() -> None:
    assert all(finding.holds for finding in check_word(Word.of(lies.Honest()), real=False).findings)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    ["qsgd", "topk(0.1)", "power_sgd", "ef", "two_hop", "local(3)", "diloco(3)", "mg_wfbp", "dear", "dpsgd", "ps"],
)
def test_words_of_this_library_keep_theirs(text: str) -> None:
    (checked,) = check(text, real=False)
    assert [finding for finding in checked.findings if not finding.holds] == []


@pytest.mark.long
def test_processes_are_compared_with_virtual_workers() -> None:
    (checked,) = check("scaled_sign", real=True)
    assert any("real processes" in finding.says and finding.holds for finding in checked.findings)


def test_the_command_says_what_fails_and_ends_with_one(tmp_path: Path) -> None:
    file = tmp_path / "mine_for_check.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from laconic.extend import Compressor, Outcome\n"
        "@dataclass(frozen=True)\n"
        "class Twice(Compressor):\n"
        '    """The mean, and the promise of twice its bytes."""\n'
        "    def exchange(self, x, state, meet):\n"
        "        return Outcome((yield meet.mean(x)), state)\n"
        "    def payload_bytes(self, spec, size):\n"
        "        return 2 * spec.nbytes\n"
    )
    done = CliRunner().invoke(app, ["check", str(file), "--no-real"])
    assert done.exit_code == 1 and "1 worker with normal values of shape [1]" in done.output
    assert "hands over 4 bytes, and 8 are promised" in " ".join(done.output.split())
    as_json = CliRunner().invoke(app, ["check", str(file), "--no-real", "--json"])
    assert json.loads(as_json.stdout)[0]["holds"] is False


def test_what_is_no_technique_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "nothing_in_it.py"
    empty.write_text("x = 1\n")
    with pytest.raises(LaconicError, match="defines no technique"):
        list(check(str(empty)))
    with pytest.raises(LaconicError, match="not one word"):
        list(check("bsp / topk(0.1)+ef"))
