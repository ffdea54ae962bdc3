"""Gavel's measured throughputs, and the jobs that its authors draw from them (Narayanan et al., OSDI 2020)."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from laconic.cluster.by_type import ByType
from laconic.cluster.job import Job
from laconic.errors import ClusterError

Throughputs = Mapping[tuple[str, int], Mapping[str, float]]
Pairs = Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]]

_SIZES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}
KINDS = (*(f"{name} (batch size {n})" for name, sizes in _SIZES.items() for n in sizes), "A3C", "CycleGAN")
"""What jobs train, in the order in which the authors draw from them."""
_ALONE = ("Recommendation", "A3C", "CycleGAN")  # on one GPU only


def read_gavel(path: Path) -> Throughputs:
    """Return steps a second by what is trained and on how many GPUs, and by type of GPU; of jobs alone on their GPUs,
    whose workers are close to each other.

    - `path`: the authors' `simulation_throughputs.json`.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for gpu, kind, speeds in _tables(path):
        found.setdefault(kind, {})[gpu] = float(speeds["null"])
    return found


def read_gavel_pairs(path: Path) -> Pairs:
    """Return steps a second of jobs that share their GPUs with another of as many workers: by what is trained and on
    how many GPUs, by type of GPU, and by what the other trains; 0 where the two did not fit together.

    - `path`: the authors' `simulation_throughputs.json`.
    """
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for gpu, kind, speeds in _tables(path):
        others = {_kind(name): pair[0] for name, pair in speeds.items() if name != "null"}
        found.setdefault(kind, {})[gpu] = {
            other[0]: float(speed) for other, speed in others.items() if other is not None and other[1] == kind[1]
        }
    return found


def _tables(path: Path) -> Iterator[tuple[str, tuple[str, int], Mapping[str, Any]]]:
    """Yield what was measured of each kind of job on each type of GPU, of workers that are close to each other."""
    for gpu, table in json.loads(path.read_text()).items():
        if gpu.endswith("_unconsolidated"):
            continue
        for name, speeds in table.items():
            kind = _kind(name)
            if kind is None or "null" not in speeds:
                raise ClusterError(f"{path} has {name!r} for {gpu}, which is no kind of job with a throughput alone")
            yield gpu, kind, speeds


def _kind(name: str) -> tuple[str, int] | None:
    facts = re.fullmatch(r"\('(.*)', (\d+)\)", name)
    return None if facts is None else (facts[1], int(facts[2]))


def continuous_jobs(throughputs: Throughputs, per_hour: float, count: int, seed: int, gangs: bool = False) -> list[Job]:
    """Return jobs as the authors' simulator draws them by that seed: a Poisson process, kinds drawn evenly, and work
    for as long on V100s as 80 % of Philly's jobs, half an hour to 17 hours, and the others, to a week, take.

    - `throughputs`: of all kinds.
    - `per_hour`: arrivals an hour; 0: all at once.
    - `count`: how many jobs.
    - `seed`: theirs.
    - `gangs`: whether 30 % of the jobs take 2, 4 or 8 GPUs.
    """
    draw, waits = random.Random(seed + 2), random.Random(seed + 3)
    jobs, now = [], 0.0
    for number in range(count):
        size = draw.uniform(0, 1)
        workers = 1 if size < 0.7 else 2 if size <= 0.8 else 4 if size <= 0.95 else 8
        is_long = draw.random() >= 0.8
        seconds = 60 * 10 ** (draw.uniform(3, 4) if is_long else draw.uniform(1.5, 3))
        workers = workers if gangs else 1
        kind = draw.choice(KINDS)
        while workers > 1 and kind.startswith(_ALONE):
            kind = draw.choice(KINDS)
        speeds = throughputs[kind, workers]
        jobs.append(Job(f"job{number}", now, workers, ByType(seconds * speeds["v100"], speeds), kind=kind))
        if per_hour:
            now += -math.log(1.0 - waits.random()) * 3600 / per_hour
    return jobs
