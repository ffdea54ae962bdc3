"""Microsoft's Philly trace, as a table of submission, duration and GPUs of each job (Jeon et al., USENIX ATC 2019)."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from laconic.cluster.job import Fixed, Job
from laconic.errors import ClusterError


def read_philly(path: Path, tenant: str | None = None, least_seconds: float = 0.0) -> list[Job]:
    """Return the jobs of a table with the columns timestamp, duration, num_gpus and cluster. Times begin with the first
    of the jobs that are returned.

    - `path`: the file.
    - `tenant`: whose jobs, as the column `cluster` names them; default: everybody's.
    - `least_seconds`: jobs that took less are left out.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and not {"timestamp", "duration", "num_gpus", "cluster"} <= rows[0].keys():
        raise ClusterError(f"{path} lacks a column; it should have timestamp, duration, num_gpus and cluster")
    wanted = [
        row
        for row in rows
        if (tenant is None or row["cluster"] == tenant) and float(row["duration"]) >= max(least_seconds, 1e-9)
    ]
    times = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in wanted]
    begin = min(times, default=0.0)
    return [
        Job(f"job{i}", time - begin, int(row["num_gpus"]), Fixed(float(row["duration"])), row["cluster"])
        for i, (row, time) in enumerate(zip(wanted, times, strict=True))
    ]
