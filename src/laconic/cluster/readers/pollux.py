"""The measurements and workloads of Pollux (Qiao et al., OSDI 2021): six models on up to 64 GPUs of 16 hosts."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from laconic.cluster.job import Job
from laconic.cluster.training import Application, Curve, Training
from laconic.errors import ClusterError

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL = {"yolov3": 8}  # samples that fit, where it is not the largest number that was measured
SINGLE = {"ncf": 32768}  # what is trained on one GPU only, with this batch: more of either does not pay
MOST_WORKERS = 64

Adapts = Literal["nothing", "workers", "batch"]


def _columns(path: Path, *names: str) -> list[list[str]]:
    if not path.is_file():
        raise ClusterError(f"{path} is not there; give the folder of one application of Pollux's traces")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not set(names) <= rows[0].keys():
        raise ClusterError(f"{path} lacks rows or a column; it should have {', '.join(names)}")
    return [[row[name] for name in names] for row in rows]


@cache
def read_application(folder: Path) -> Application:
    """Return an application from its folder: `validation-*.csv`, `placements.csv` and `scalability.csv`.

    - `folder`: the folder, named as the application.
    """
    if folder.name not in EPOCHS:
        raise ClusterError(f"{folder.name} is none of Pollux's applications; there are {', '.join(EPOCHS)}")
    curves = {}
    for path in folder.glob("validation-*.csv"):
        table = np.array(_columns(path, "progress", "iteration", "grad_sqr", "grad_var"), dtype=float)
        curves[int(path.stem.split("-")[-1])] = Curve(*table.T)
    placed: dict[tuple[int, ...], list[list[float]]] = {}
    grouped: dict[tuple[int, int, int], list[list[float]]] = {}
    for name, local, step, sync in _columns(
        folder / "placements.csv", "placement", "local_bsz", "step_time", "sync_time"
    ):
        placement, times = tuple(map(int, name)), [float(step), float(sync)]
        placed.setdefault(placement, []).append([float(local), *times])
        grouped.setdefault((len(placement), sum(placement), int(local)), []).append(times)
    means = [[*key, *np.mean(grouped[key], axis=0)] for key in sorted(grouped)]
    more = _columns(folder / "scalability.csv", "num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    locals_ = [local for _, _, local in grouped]
    return Application(
        folder.name,
        curves,
        {placement: np.array(sorted(rows)) for placement, rows in placed.items()},
        np.array([*means, *([float(x) for x in row] for row in more)]),
        EPOCHS[folder.name],
        min(locals_),
        MOST_LOCAL.get(folder.name, max(locals_)),
    )


def read_workload(path: Path, traces: Path, adapts: Adapts = "nothing") -> list[Job]:
    """Return the jobs of a workload, a table with the columns name, time, application, num_replicas and batch_size.

    - `path`: the file.
    - `traces`: the folder with a folder for each application.
    - `adapts`: what a policy may change of a job: nothing, its workers, or its workers and its batch.
    """
    jobs = []
    for name, time, kind, workers, size in _columns(path, "name", "time", "application", "num_replicas", "batch_size"):
        application, asked, batch = read_application(traces / kind), int(workers), int(size)
        training = Training(application, batch)
        least = most = asked
        if adapts != "nothing":
            least, most = 1, min(MOST_WORKERS, batch // application.least_local)
        if adapts == "batch":
            training = Training(application, SINGLE.get(kind, application.tuned_batch), kind in SINGLE)
            most = min(MOST_WORKERS, application.most_batch // application.least_local)
        if kind in SINGLE and adapts != "nothing":
            most = 1
        jobs.append(Job(name, float(time), asked, training, kind=kind, least=least, most=most))
    return jobs
