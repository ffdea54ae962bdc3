"""Throughputs by number of workers, of the step times that Pollux' authors measured (Qiao et al., OSDI 2021)."""

from __future__ import annotations

import csv
from pathlib import Path

from laconic.errors import ClusterError


def read_speeds(folder: Path) -> dict[str, tuple[float, ...]]:
    """Return samples a second of every model on 1, 2, ... workers on as few hosts of 4 GPUs as possible, each worker
    with the middle one of the batches that were measured on one GPU.

    - `folder`: holds a folder for each model, with a table `placements.csv` whose columns are placement (a digit for
      each host, its workers), local_bsz and step_time.
    """
    found: dict[str, tuple[float, ...]] = {}
    for path in sorted(folder.glob("*/placements.csv")):
        with path.open(newline="") as file:
            steps = {(row["placement"], int(row["local_bsz"])): float(row["step_time"]) for row in csv.DictReader(file)}
        batches = sorted(batch for placement, batch in steps if placement == "1")
        if not batches:
            raise ClusterError(f"{path} has no step time for one GPU")
        batch, speeds, workers = batches[(len(batches) - 1) // 2], list[float](), 1
        while step := steps.get((("" if workers % 4 == 0 else str(workers % 4)) + "4" * (workers // 4), batch)):
            speeds.append(workers * batch / step)
            workers += 1
        found[path.parent.name] = tuple(speeds)
    return found
