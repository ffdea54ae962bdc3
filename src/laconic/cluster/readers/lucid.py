"""Speeds of pairs of jobs on one GPU, as Lucid's authors measured them (Hu et al., ASPLOS 2023)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from laconic.cluster.sharing.mps import Pair
from laconic.errors import ClusterError


class Colocated(NamedTuple):
    """A measurement.

    - `pair`: what the two train, and the speed of each as a share of that alone.
    - `utilisation`: the share of the time in which the GPU was busy.
    - `memory_bytes`: of the GPU, of both together.
    """

    pair: Pair
    utilisation: float
    memory_bytes: float


def read_lucid(path: Path) -> list[Colocated]:
    """Return all measurements; a kind is a model, its data, its batch and whether it uses mixed precision.

    - `path`: the authors' `colocate_info.csv`.
    """
    try:
        with path.open(newline="") as file:
            return [
                Colocated(
                    Pair(_kind(row, 1), _kind(row, 2), float(row["speed1"]), float(row["speed2"])),
                    float(row["gpu_util"]) / 100,
                    float(row["gmem"]) * 2**20,
                )
                for row in csv.DictReader(file)
            ]
    except KeyError as error:
        raise ClusterError(f"{path} lacks the column {error} of pairs of jobs") from None


def _kind(row: dict[str, str], which: int) -> str:
    return "-".join(row[f"{name}{which}"] for name in ("model", "dataset", "batchsize", "amp"))
