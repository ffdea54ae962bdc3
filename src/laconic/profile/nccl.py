"""Published times of NCCL's collectives: `nccl_perf.csv` of NVIDIA's aiconfigurator, one table for each system.

Its message sizes are elements (half goes to 2^28 and int8 to 2^29 in the same time), its latencies milliseconds.
"""

from __future__ import annotations

import csv
from pathlib import Path

from laconic.profile.collectives import WIDTHS, CollectiveTimes, Curve, with_similar_systems
from laconic.values.profile import ProfileError

FILE = Path("nccl") / "nccl_perf.csv"
_COLUMNS = ("system", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")


def read(path: Path) -> dict[str, CollectiveTimes]:
    """Return the tables by system; where a size was measured several times, the median counts."""
    if not path.is_file():
        raise ProfileError(f"{path} is not there: it holds NCCL's times, with columns {', '.join(_COLUMNS)}")
    samples: dict[str, dict[tuple[str, str], dict[int, list[tuple[int, float]]]]] = {}
    with path.open(newline="") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ProfileError(f"{path} has no column {', '.join(missing)}: it is no table of NCCL's times")
        for number, row in enumerate(reader, start=2):
            system, operation, dtype, gpus, elements, milliseconds = (row[name] for name in _COLUMNS)
            if dtype not in WIDTHS:
                raise ProfileError(f"{path}, row {number}: dtype {dtype!r} is none of {', '.join(WIDTHS)}")
            try:
                point = int(elements) * WIDTHS[dtype], float(milliseconds) / 1e3
                own = samples.setdefault(system, {}).setdefault((operation, dtype), {})
                own.setdefault(int(gpus), []).append(point)
            except ValueError as error:
                raise ProfileError(f"{path}, row {number}: {error}") from error
    if not samples:
        raise ProfileError(f"{path} has no rows: it holds no measurement")
    return with_similar_systems(
        [
            CollectiveTimes(
                system,
                {
                    key: {gpus: Curve.of(points) for gpus, points in sorted(counts.items())}
                    for key, counts in table.items()
                },
            )
            for system, table in samples.items()
        ]
    )
