"""Shakespeare by speaker: who holds which lines, what is learned and judged, and the order of McMahan's tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench.federated_shakespeare import Setting, rounds_to
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.federated.federation import Federation
from laconic.federated.partition import natural
from laconic.federated.shakespeare import lines_by_speaker, shakespeare
from tests.data import FOLDER

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


def rounds(clients: int, epochs: int, batch: int, every: int, target: float, seed: int, rate: float = 8.0) -> float:
    """Return the rounds in which speakers who hold their own lines reach an accuracy; the rate of 8 is the best of a
    grid of factor 2 for ten clients or more, on a seed that is not used here."""
    if not (FOLDER / "text" / "tinyshakespeare.txt").is_file():
        pytest.skip(f"text/tinyshakespeare.txt is not in {FOLDER}: set LACONIC_DATA to the folder that has it")
    most = 200
    setting = Setting("natural", clients, epochs, batch, every, most, target)
    found = rounds_to(setting, rate, seed, most)[0]
    return most if found is None else found


@pytest.mark.long
@pytest.mark.evidence("fedavg")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_local_work_saves_rounds_in_the_published_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of the speakers in a round: FedSGD, five epochs of whole batches, one epoch of batches of ten, five
    of these, by their numbers of local steps. The paper saves 10 to 100 times the rounds."""
    monkeypatch.setenv("LACONIC_DATA", str(FOLDER))
    work = ((1, 0, 4), (5, 0, 1), (1, 10, 1), (5, 10, 1))
    fedsgd, five, batches, both = (rounds(10, *numbers, target=0.3, seed=seed) for numbers in work)
    assert fedsgd > 4 * five and five > 1.2 * batches and batches > 3 * both
    assert fedsgd > 10 * both


@pytest.mark.long
@pytest.mark.evidence("fedavg")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_clients_save_rounds_and_ever_fewer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the paper's table of client fractions, which is of images: a tenth of the clients saves most of the rounds
    that one client takes, and a fifth little more."""
    monkeypatch.setenv("LACONIC_DATA", str(FOLDER))
    one = rounds(1, 5, 10, 2, target=0.36, seed=seed, rate=2.0)
    ten, twenty = (rounds(clients, 5, 10, 1, target=0.36, seed=seed) for clients in (10, 20))
    assert one > 4 * ten and ten / 2 < twenty < 1.3 * ten
