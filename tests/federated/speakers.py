"""The next character of a play, among its speakers: clients as the data names them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn

from laconic.federated.partition import Shards, natural
from laconic.federated.task import Classification
from tests.data import folder_of

CONTEXT, EACH = 6, 400


@cache
def speakers(count: int) -> tuple[Classification, Shards]:
    """Return the task of telling the next character from the six before it, and the samples of each of the speakers
    who say most: of what each says, the beginning is for training, and a quarter as much after it for the test."""
    text = (folder_of("text") / "tinyshakespeare.txt").read_text().lower()
    said: dict[str, str] = {}
    for speech in text.split("\n\n"):
        name, _, words = speech.partition(":\n")
        said[name] = said.get(name, "") + words + "\n"
    chosen = sorted(said, key=lambda name: -len(said[name]))[:count]
    letters = sorted(set("".join(said[name] for name in chosen)))
    code = {letter: place for place, letter in enumerate(letters)}
    windows = [
        torch.tensor([code[letter] for letter in said[name]]).unfold(0, CONTEXT + 1, 1)[: EACH + EACH // 4]
        for name in chosen
    ]
    train, test = torch.cat([w[:EACH] for w in windows]), torch.cat([w[EACH:] for w in windows])

    def make() -> nn.Module:
        numel = len(letters)
        return nn.Sequential(
            nn.Embedding(numel, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, 64), nn.ReLU(), nn.Linear(64, numel)
        )

    task = Classification(make, train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])
    return task, natural(np.repeat(np.arange(count), EACH))
