"""Alibaba's GPU trace of 2023, as tables of nodes and of pods (Weng et al., USENIX ATC 2023)."""

from __future__ import annotations

import csv
from pathlib import Path

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.packing.tasks import Task
from laconic.errors import ClusterError


def read_openb_hosts(path: Path) -> Cluster:
    """Return the hosts of a table with the columns sn, cpu_milli, memory_mib, gpu and model, in the order of names.

    - `path`: the file.
    """
    rows = _rows(path, {"sn", "cpu_milli", "memory_mib", "gpu", "model"})
    hosts = [
        Host(
            row["sn"], int(row["gpu"]), row["model"], cpu_milli=int(row["cpu_milli"]), memory_mib=int(row["memory_mib"])
        )
        for row in rows
    ]
    return Cluster(tuple(sorted(hosts, key=lambda host: host.name)))


def read_openb_tasks(path: Path) -> list[Task]:
    """Return what the pods of a table ask for, in its order: columns cpu_milli, memory_mib, num_gpu, gpu_milli and
    gpu_spec, which names types of GPU with bars between them.

    - `path`: the file.
    """
    return [
        Task(
            int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), int(row["gpu_milli"]),
            frozenset(filter(None, row["gpu_spec"].split("|"))),
        )
        for row in _rows(path, {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"})
    ]  # fmt: skip


def _rows(path: Path, columns: set[str]) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and not columns <= rows[0].keys():
        raise ClusterError(f"{path} lacks a column; it should have {', '.join(sorted(columns))}")
    return rows
