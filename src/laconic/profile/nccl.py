"""Published times of NCCL's collectives: `nccl_perf.csv` of NVIDIA's aiconfigurator, one table for each system.

Its message sizes are elements (half goes to 2^28 and int8 to 2^29 in the same time), its latencies milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from laconic.profile.collectives import WIDTHS, CollectiveTimes, Curve, with_similar_systems
from laconic.reading import Natural, Positive, Source
from laconic.values.profile import ProfileError

FILE = Path("nccl") / "nccl_perf.csv"


@dataclass(frozen=True)
class _Row:
    """A row of the table."""

    system: str
    op_name: str
    nccl_dtype: Literal[tuple(WIDTHS)]  # type: ignore[valid-type]
    num_gpus: Annotated[int, Meta(ge=2, le=2**20)]
    message_size: Natural
    latency: Positive


def read(path: Path) -> dict[str, CollectiveTimes]:
    """Return the tables by system; where a size was measured several times, the median counts."""
    source = Source(path, "table of NCCL's times", "copy it again from aiconfigurator (`laconic data`)", ProfileError)
    samples: dict[str, dict[tuple[str, str], dict[int, list[tuple[int, float]]]]] = {}
    for row in source.rows(source.text(), _Row):
        point = row.message_size * WIDTHS[row.nccl_dtype], row.latency / 1e3
        own = samples.setdefault(row.system, {}).setdefault((row.op_name, row.nccl_dtype), {})
        own.setdefault(row.num_gpus, []).append(point)
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
