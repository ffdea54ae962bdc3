"""The output of `laconic data`: which published measurements there are, which are at hand, and their sources."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from laconic.planner.validation.datasets import DATASETS, Dataset


def shown(folder: Path | None) -> str:
    """Return the list for people."""
    where = (
        f"LACONIC_DATA is {folder}" if folder is not None else "LACONIC_DATA is not set: set it to a folder of yours"
    )
    blocks = [_block(dataset, folder) for dataset in DATASETS]
    return "\n".join([f"{where}. Files go into it under these paths; nothing here is needed for training.", *blocks])


def as_json(folder: Path | None) -> str:
    """Return the same for programs."""
    return json.dumps([{**asdict(dataset), "found": _found(dataset, folder)} for dataset in DATASETS], indent=2)


def _block(dataset: Dataset, folder: Path | None) -> str:
    mark = "found" if _found(dataset, folder) else "missing"
    facts = {"holds": dataset.holds, "from": dataset.source, "licence": dataset.licence, "read by": dataset.readers}
    lines = [f"\n{mark:<9}{', '.join(dataset.places)}", *(f"  {name:<9}{fact}" for name, fact in facts.items())]
    return "\n".join(lines)


def _found(dataset: Dataset, folder: Path | None) -> bool:
    return folder is not None and dataset.found(folder)
