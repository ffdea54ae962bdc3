"""vTrain's tables of measured GPT iterations, on A100s of one host and of many (Bang et al., MICRO 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from laconic.errors import LaconicError
from laconic.parallel.hybrid.published import Published
from laconic.parallel.hybrid.runs import Layout, Run
from laconic.parallel.hybrid.transformer import Transformer
from laconic.planner.values import PlanError
from laconic.reading import Positive, Source

SINGLE, MULTI = Path("vtrain") / "single_sample.csv", Path("vtrain") / "multi_sample.csv"
_COLUMNS = {
    "global batch": "batch",
    "micro batch": "microbatch",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "sequence",
    "tensor parallelism": "tensor",
    "data parallelism": "data",
    "pipeline parallelism": "pipeline",
    "iteration time (ms)": "milliseconds",
}
_Size = Annotated[int, Meta(ge=1, le=2**24)]


@dataclass(frozen=True)
class _Row:
    batch: _Size
    microbatch: _Size
    hidden: _Size
    heads: _Size
    layers: _Size
    sequence: _Size
    tensor: _Size
    data: _Size
    pipeline: _Size
    milliseconds: Positive


def read(path: Path, recompute: int) -> Sequence[Published]:
    """Return the runs of one table; it does not say what was recomputed."""
    source = Source(path, "table of vTrain's", "copy it again from the repository (`laconic data`)", PlanError)
    names, _, body = source.text().partition("\n")
    renamed = ",".join(_COLUMNS.get(name.strip(), "") for name in names.split(","))
    found = []
    for number, row in enumerate(source.rows(f"{renamed}\n{body}", _Row), 1):
        try:
            model = Transformer(row.layers, row.hidden, row.heads, row.sequence)
            layout = Layout(row.pipeline, row.tensor, row.data, row.microbatch, recompute=recompute)
            run = Run(model, row.batch, layout)
        except LaconicError as error:
            raise source.refused(f"row {number}: {error}") from error
        found.append(Published(f"row {number}", run, row.milliseconds * 1e-3))
    return found
