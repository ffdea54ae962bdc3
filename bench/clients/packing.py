"""The runs of the federated table, side by side on one device."""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Iterator
from multiprocessing.connection import Connection
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
    def serve(end: Connection, given: argparse.Namespace, size: Size) -> None:
        """Train what is asked for, and answer with rows; with a text where a run fails."""
        import torch
        from bench.clients.images import Images
        from bench.clients.training import train

        torch.set_num_threads(1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        facts = {
            "packed": given.processes,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
            "torch": torch.__version__.partition("+")[0],
        }
        task: Images | None = None
        while True:
            run = end.recv()
            try:
                task = task or Images.load(device, size.images)
                end.send(train(run, task, not given.eager) | facts)
            except Exception as error:
                import traceback

                where = traceback.extract_tb(error.__traceback__)[-1]
                end.send(f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})")
            gc.collect()  # of what the run held, so that all processes together fit on the device
            if device.type == "cuda":
                torch.cuda.empty_cache()
