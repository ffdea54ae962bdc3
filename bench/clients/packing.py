"""The runs of the federated table, side by side on one device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

from bench.clients.choosing import Run, Size, needed
from bench.packed import Packed, Table


class Clients(Packed[Run]):
    """The runs of a table of this size."""

    def __init__(self, given: argparse.Namespace, size: Size, table: Table) -> None:
        super().__init__(given, table, (given, size))
        self._size, self._failed = size, list[dict[str, Any]]()

    def missing(self) -> Iterator[Run]:
        for run in needed(self._size, [*self._table.rows, *self._failed]):
            if not self._given.only or any(text in f"{run.population}: {run.sentence}" for text in self._given.only):
                yield run

    def cost(self, run: Run) -> float:
        return run.work

    def failed(self, run: Run, why: str) -> None:
        print(f"failed: {run.population}: {run.sentence}, rate {run.rate:g}: {why}", flush=True)
        self._failed.append({**vars(run), "accuracy": -math.inf})  # tried again when the table is continued

    def described(self, run: Run, row: dict[str, Any]) -> str:
        return (
            f"{run.purpose:6}  {100 * row['accuracy']:5.1f} %  rate {run.rate:<5g} seed {run.seed:<3}"
            f"  {row['seconds']:6.1f} s  {run.rounds} rounds  {run.population}: {run.sentence}"
        )

    @staticmethod
    def trainer(given: argparse.Namespace, size: Size) -> Callable[[Run], dict[str, Any]]:
        import torch
        from bench.clients.images import Images
        from bench.clients.training import train

        task = Images.load(torch.device("cuda" if torch.cuda.is_available() else "cpu"), size.images)
        return lambda run: train(run, task, not given.eager)
