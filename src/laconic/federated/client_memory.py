"""What clients keep between the rounds in which they take part, by client: in memory, or in files."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from laconic.files import make_folder, replacing

Memory = dict[str, Tensor]
"""One client's tensors, by their names."""


class ClientMemory(Protocol):
    """The memory of all clients."""

    def load(self, client: int) -> Memory:
        """Return what a client keeps: nothing, before it has saved anything."""
        ...

    def save(self, client: int, memory: Memory) -> None:
        """Keep this in place of what the client kept."""
        ...


class InMemory:
    """The memory of clients in this process."""

    def __init__(self) -> None:
        self._kept: dict[int, Memory] = {}

    def load(self, client: int) -> Memory:
        return {name: value.clone() for name, value in self._kept.get(client, {}).items()}

    def save(self, client: int, memory: Memory) -> None:
        if memory or client in self._kept:
            self._kept[client] = memory


class OnDisk:
    """The memory of clients in files of a folder, one for each client: for more of it than fits in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = make_folder(folder)

    def load(self, client: int) -> Memory:
        path = self._path(client)
        found: Memory = torch.load(path, weights_only=True) if path.exists() else {}
        return found

    def save(self, client: int, memory: Memory) -> None:
        if memory or self._path(client).exists():
            with replacing(self._path(client)) as path:
                torch.save(memory, path)

    def _path(self, client: int) -> Path:
        return self._folder / f"{client}.pt"
