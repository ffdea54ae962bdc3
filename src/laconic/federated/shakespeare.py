"""Shakespeare's characters as clients: each holds the lines of one speaker, and all learn to write the next letter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.errors import LaconicError
from laconic.reading import Source

_PLACE = "text/tinyshakespeare.txt"
_PADDING = -100
"""Stands where a sequence is longer than the text that is left: it is neither learned nor judged."""


class NextCharacter(nn.Module):
    """Scores of the character that follows, after each character of a sequence: an embedding, an LSTM and a linear
    layer."""

    def __init__(self, characters: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = nn.LSTM(8, units, batch_first=True)
        self.head = nn.Linear(units, characters)

    def forward(self, text: Tensor) -> Tensor:
        scores: Tensor = self.head(self.lstm(self.embedding(text))[0])
        return scores


@dataclass(frozen=True, eq=False)
class Writing:
    """A task of predicting each character of a sequence from those before it.

    - `characters`: how many different ones there are.
    - `units`: of the LSTM.
    - `sequences`, `test_sequences`: rows of characters, each of which is to be predicted from those on its left; what
      follows a text's end is negative.
    - `groups`: the number of the speaker of each row, by which the partition `natural` divides them.
    """

    characters: int
    units: int
    sequences: Tensor
    groups: Tensor
    test_sequences: Tensor

    @property
    def labels(self) -> Tensor:
        """The speakers, in place of classes: `dirichlet` and `by_label` divide the lines of each."""
        return self.groups

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return NextCharacter(self.characters, self.units)

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        scores, following = self._scored(model, self.sequences[samples])
        return functional.cross_entropy(scores, following, ignore_index=_PADDING)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        scores, following = self._scored(model, self.test_sequences)
        right = (scores.argmax(1) == following)[following != _PADDING].float().mean()
        loss = functional.cross_entropy(scores, following, ignore_index=_PADDING)
        return {"loss": float(loss), "accuracy": float(right)}

    @staticmethod
    def _scored(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        return model(rows[:, :-1].clamp(min=0)).flatten(0, 1), rows[:, 1:].flatten()


def lines_by_speaker(text: str) -> dict[str, list[str]]:
    """Return the lines of each speaker of plays, in the order in which they are spoken.

    A speech begins after an empty line with the name of who speaks and a colon.
    """
    spoken: dict[str, list[str]] = {}
    for speech in text.split("\n\n"):
        name, *lines = speech.strip("\n").split("\n")
        if name.endswith(":") and lines:
            spoken.setdefault(name.removesuffix(":"), []).extend(lines)
    return spoken


def shakespeare(
    text: Path | None = None, speakers: int = 100, units: int = 32, length: int = 20, most: int = 100
) -> Writing:
    """Return the task of McMahan et al. (2017) on Shakespeare, smaller: an LSTM learns to write the next character.

    Of every speaker with at least two lines, the first four fifths of the lines are to be learned, and the last fifth
    is what the model is judged by. The paper has 1,146 roles, rows of 80 characters, and two layers of 256 units after
    the embedding of 8 numbers; here are one layer of 32 and a hundred speakers, drawn once, so that one core trains it
    in seconds.

    - `text`: a file of plays; `text/tinyshakespeare.txt` in the folder `LACONIC_DATA`, if it is not given.
    - `speakers`: how many speakers there are.
    - `units`: of the LSTM.
    - `length`: the characters of a row that are predicted.
    - `most`: the rows that one speaker holds at most; an eighth as many are for judging.
    """
    return _task(text or _home(), speakers, units, length, most)


@cache
def _task(text: Path, speakers: int, units: int, length: int, most: int) -> Writing:
    plays = Source(text, "text of plays", f"`laconic data` says where to get {_PLACE}").text()
    numbers = {character: number for number, character in enumerate(sorted(set(plays)))}
    spoken = [lines for lines in lines_by_speaker(plays).values() if len(lines) > 1]
    if len(spoken) < speakers:
        raise LaconicError(f"the text has {len(spoken)} speakers with two lines or more, fewer than {speakers}")
    chosen = np.sort(np.random.default_rng(0).choice(len(spoken), speakers, replace=False))
    learned, judged = [], []
    for lines in (spoken[number] for number in chosen):
        kept = min(max(1, len(lines) * 4 // 5), len(lines) - 1)
        learned.append(_rows(lines[:kept], numbers, length)[:most])
        judged.append(_rows(lines[kept:], numbers, length)[: max(1, most // 8)])
    groups = torch.arange(speakers).repeat_interleave(torch.tensor([len(rows) for rows in learned]))
    return Writing(len(numbers), units, torch.cat(learned), groups, torch.cat(judged))


def _home() -> Path:
    folder = os.environ.get("LACONIC_DATA")
    if folder is None:
        raise LaconicError(
            f"the task shakespeare reads {_PLACE} in the folder LACONIC_DATA, which is not set: `laconic data` says "
            "where to get it"
        )
    return Path(folder) / _PLACE


def _rows(lines: Sequence[str], numbers: dict[str, int], length: int) -> Tensor:
    """Return lines as rows that begin with the last character of the row before, the last one filled up."""
    whole = torch.tensor([numbers[character] for character in "\n".join(["", *lines, ""])])
    count = -(-(len(whole) - 1) // length)
    padded = functional.pad(whole, (0, count * length + 1 - len(whole)), value=_PADDING)
    return padded.unfold(0, length + 1, length).contiguous()
