"""Shakespeare by speaker: who holds which lines, and what is learned and judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.federated.federation import Federation
from laconic.federated.partition import natural
from laconic.federated.shakespeare import lines_by_speaker, shakespeare

PLAY = """First Citizen:
Before we go,
hear me.

All:
Speak, speak.

First Citizen:
You all know:
it is so.
Is it?

All:
It is.

Herald:
Alone I stand.
"""


def a_play(folder: Path, speakers: int = 100) -> Path:
    """Write a play whose k-th speaker has k + 2 lines."""
    path = folder / "text" / "tinyshakespeare.txt"
    path.parent.mkdir()
    speeches = ["\n".join([f"Speaker {k}:", *(f"line {n} of {k}" for n in range(k + 2))]) for k in range(speakers)]
    path.write_text("\n\n".join(speeches) + "\n")
    return path


def test_lines_belong_to_who_speaks_them_in_order() -> None:
    spoken = lines_by_speaker(PLAY)
    assert spoken["First Citizen"] == ["Before we go,", "hear me.", "You all know:", "it is so.", "Is it?"]
    assert spoken["All"] == ["Speak, speak.", "It is."] and spoken["Herald"] == ["Alone I stand."]


@pytest.mark.parametrize("length", [5, 20, 64])
def test_the_first_lines_are_learned_and_the_last_are_judged(tmp_path: Path, length: int) -> None:
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    task = shakespeare(path, speakers=2, length=length)
    letters = sorted(set(PLAY))

    def written(rows: torch.Tensor) -> str:
        kept = rows[:, 1:].flatten()
        return "".join(letters[number] for number in kept if number >= 0)

    shards = natural(task.groups)  # one line of the herald is too little
    texts = [written(task.sequences[torch.from_numpy(shards[client])]) for client in range(len(shards))]
    assert texts == ["Before we go,\nhear me.\nYou all know:\nit is so.\n", "Speak, speak.\n"]
    assert written(task.test_sequences) == "Is it?\nIt is.\n"
    follows = task.sequences[1:, 0] == task.sequences[:-1, -1]
    assert follows[task.groups[1:] == task.groups[:-1]].all()


def test_a_speaker_holds_no_more_rows_than_allowed(tmp_path: Path) -> None:
    task = shakespeare(a_play(tmp_path), most=16)
    assert natural(task.groups).sizes.max() == 16 and natural(task.groups).sizes.min() == 1
    assert len(task.test_sequences) <= 100 * 2


def test_what_follows_the_end_of_a_text_is_neither_learned_nor_judged(tmp_path: Path) -> None:
    """Rows of one speaker's single short line: the mean is over its characters, however long rows are."""
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    exact, padded = (shakespeare(path, speakers=2, length=length) for length in (14, 50))
    model, last = exact.build(0), torch.tensor([-1])
    assert exact.loss(model, torch.tensor([len(exact.groups) - 1])).item() == pytest.approx(
        padded.loss(model, last).item(), rel=1e-5
    )
    assert exact.evaluate(model)["loss"] == pytest.approx(padded.evaluate(model)["loss"], rel=1e-5)
    assert exact.evaluate(model)["accuracy"] == pytest.approx(padded.evaluate(model)["accuracy"])


def test_the_command_line_divides_it_by_speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_play(tmp_path)
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path))
    federation = Federation(task="shakespeare", partition="natural")
    assert len(federation.population) == 100 and len(federation.labels) == len(federation.shards().order)
    options = ["--task", "shakespeare", "--partition", "natural", "--steps", "2", "--rate", "1"]
    found = CliRunner().invoke(app, ["federated", "run", "fedavg(clients=2)", *options])
    assert found.exit_code == 0, found.output


def test_a_text_that_is_missing_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    with pytest.raises(LaconicError, match="LACONIC_DATA, which is not set"):
        shakespeare()
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path))
    with pytest.raises(LaconicError, match="laconic data"):
        shakespeare()
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    with pytest.raises(LaconicError, match="fewer than 3"):
        shakespeare(path, speakers=3)
