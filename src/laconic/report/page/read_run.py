"""Read a run's folder: what ran, what it logged, its timeline, and the ends of its logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laconic.experiments.outcome import Logged
from laconic.report.page.files import read_json, read_records
from laconic.report.page.values import ReportError, Run
from laconic.runtime.timeline import Timeline
from laconic.values.run_config import STEPS

_TAIL_BYTES, _TAIL_LINES, _LOGS = 16_000, 30, 4


def is_run(folder: Path) -> bool:
    return _record(folder) is not None


def read_run(folder: Path) -> Run:
    """Read a run, or raise a ReportError where it has left nothing to show."""
    path = _record(folder)
    assert path is not None
    record = read_json(path)
    trace = next(iter(sorted(folder.glob("trace*.json"))), None)
    timeline = Timeline.read(trace) if trace is not None else None
    logged = _logged(folder)
    if not logged and "result" not in record and timeline is None:
        raise ReportError(
            f"the run in {folder} has not ended and has logged nothing yet: there is nothing to show. Wait for it, or "
            "look into its logs if it was killed."
        )
    without = "The script logged no metrics: laconic.log(loss=…) in it would draw curves here."
    return Run(folder, record, logged, timeline, _logs(folder), () if logged else (without,))


def _record(folder: Path) -> Path | None:
    """Return the path of `run.json`, or of another host's record of the same run, or None."""
    return next((p for p in (folder / "run.json", *sorted(folder.glob("run-*.json"))) if p.exists()), None)


def _logged(folder: Path) -> tuple[Logged, ...]:
    """Return what the first worker that logged anything has logged.

    Recorded steps, which have the bytes too, are preferred to its metrics.
    """
    for path in _by_rank(folder / STEPS):
        records = [r for r in read_records(path) if "values" in r]
        if records:
            return tuple(_step(r, path) for r in records)
    for path in _by_rank(folder / "metrics"):
        logged = _continued([_metrics(r, path) for r in read_records(path) if "reached" not in r])
        if logged:
            return logged
    return ()


def _step(record: Mapping[str, Any], path: Path) -> Logged:
    try:
        total = float(record["sent_bytes"]) + float(record["received_bytes"])
        values = {str(name): float(value) for name, value in record["values"].items()}
        return Logged(int(record["step"]), float(record["seconds"]), total, values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{path} is broken: it holds no steps of a comparison ({error!r}).") from error


def _metrics(record: Mapping[str, Any], path: Path) -> Logged:
    try:
        values = {str(name): float(value) for name, value in record.items() if name != "seconds"}
        return Logged(0, float(record["seconds"]), None, values)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is broken: it holds no metrics ({error!r}).") from error


def _continued(logged: Sequence[Logged]) -> tuple[Logged, ...]:
    """Number the entries; where a restarted worker's clock begins at zero again, add the time of its earlier run."""
    found: list[Logged] = []
    earlier = before = 0.0
    for number, at in enumerate(logged, 1):
        if at.seconds < before:
            earlier += before
        before = at.seconds
        found.append(Logged(number, earlier + at.seconds, None, at.values))
    return tuple(found)


def _logs(folder: Path) -> dict[str, str]:
    """Return the last lines of the first few logs that are not empty."""
    tails: dict[str, str] = {}
    for path in _by_rank(folder / "logs", "*.log"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        lines = text.splitlines()[-_TAIL_LINES:]
        if any(line.strip() for line in lines) and len(tails) < _LOGS:
            tails[path.stem] = "\n".join(lines)
    return tails


def _by_rank(folder: Path, pattern: str = "rank-*.jsonl") -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: [int(part) for part in re.findall(r"\d+", path.stem)])
